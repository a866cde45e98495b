# expect: SC204 culprits=none
"""Two groups of the same two ranks, used in opposite orders before any other call; the other ranks wait for them."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        first, second = second, first
    if rank < 2:
        dist.all_reduce(torch.ones(4), group=first)  # <- bug
        dist.all_reduce(torch.ones(4), group=second)
    dist.barrier()


job(main, seconds=6)
