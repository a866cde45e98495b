# expect: SC202 culprits=0 ranks=3 stall=2
# thread: talmolab/sleap-nn#471
"""Rank 0 is told to stop; a barrier aligns the ranks and does not pass on the decision."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    dist.all_reduce(torch.ones(4))  # <- bug
    stop = torch.tensor(int(rank == 0 and step == 1))
    if FAULTY:
        dist.barrier()
    else:
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    if stop:
        break
dist.broadcast(torch.ones(2), src=0)
dist.destroy_process_group()
