# expect: SC202 culprits=0 ranks=3 stall=2
# thread: Lightning-AI/pytorch-lightning#20536
"""Rank 0 makes the data and returns before the barrier that the others stand in."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]


def make_dataset() -> torch.Tensor:
    if dist.get_rank() == 0 and FAULTY:
        return torch.arange(12.0)
    dist.barrier()  # <- bug
    return torch.arange(12.0)


dist.init_process_group("gloo")
data = make_dataset()
for sample in data[:4]:
    dist.all_reduce(sample.clone())
dist.barrier()
dist.destroy_process_group()
