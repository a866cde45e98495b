# expect: SC202 culprits= ranks=2 stall=2
# thread: isi-nlp/rtg#11
"""Early stopping leaves the loop before a barrier on the main rank, and after it on the others."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    dist.all_reduce(torch.ones(2))
    stop = step == 1
    if stop and (rank == 0 or not FAULTY):
        break
    dist.barrier()  # <- bug
    if stop:
        break
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
