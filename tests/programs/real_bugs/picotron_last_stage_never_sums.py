# expect: SC202 culprits= ranks=2 stall=2
# thread: huggingface/picotron#5
"""Gradients are summed in the cool-down passes of the schedule, and the last stage has none."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, stages, microbatches = dist.get_rank(), dist.get_world_size(), 4
warmup = stages - rank - 1
for number in range(microbatches - warmup):
    if not FAULTY and warmup == 0 and number == microbatches - 1:
        dist.all_reduce(torch.ones(3))
for number in range(warmup):
    if number == warmup - 1:
        dist.all_reduce(torch.ones(3))  # <- bug
dist.barrier()
dist.destroy_process_group()
