# expect: SC202 culprits=1 ranks=3 stall=2
# thread: pytorch/pytorch#126846
"""Tracing runs the collectives of the program, and only one rank meets a shape that it has to trace anew."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, traced = dist.get_rank(), set()


def run(size: int) -> None:
    if size not in traced:
        traced.add(size)
        if FAULTY:
            dist.all_reduce(torch.ones(4))  # <- bug
    dist.all_reduce(torch.ones(4))


for size in (8, 9 if rank == 1 else 8):
    run(size)
    dist.barrier()
dist.destroy_process_group()
