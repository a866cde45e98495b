# expect: nothing
"""A receive that nobody sends to: Gloo writes down neither, so that the dump has nothing of it."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        dist.recv(torch.ones(4), 0)


job(main)
