# expect: SC202 culprits=2 ranks=3 stall=2
# thread: argonne-lcf/dlio_benchmark#339
"""The last rank has a file less and one step less, and is in the next epoch when the others end this one."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, batch = dist.get_rank(), 16
samples = 47 if rank == 2 else 49
steps = samples // batch if FAULTY else 47 // batch
for _epoch in range(2):
    for _step in range(steps):
        dist.barrier()  # <- bug
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
