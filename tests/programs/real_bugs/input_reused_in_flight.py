# expect: SC502 culprits=0 ranks=2
# thread: ROCm/aiter#4082
"""The input is overwritten while the other rank has not read it yet."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
late = dist.new_group()
rank, hidden = dist.get_rank(), torch.ones(64)
if rank == 1:
    dist.barrier(group=late)
work = dist.all_reduce(hidden, async_op=True)  # <- bug
if rank == 0 and FAULTY:
    hidden.fill_(float("nan"))
if rank == 0:
    dist.barrier(group=late)
work.wait()
hidden.fill_(float("nan"))
dist.destroy_process_group()
