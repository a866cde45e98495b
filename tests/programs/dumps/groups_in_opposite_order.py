# expect: SC204 culprits=none
"""Two groups of the same ranks, used in opposite orders."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    first, second = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])
    if rank > 1:
        first, second = second, first
    dist.all_reduce(torch.ones(4), group=first)  # <- bug
    dist.all_reduce(torch.ones(4), group=second)


job(main, seconds=6)
