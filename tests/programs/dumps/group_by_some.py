# expect: SC202 culprits=2
"""One rank does not make the group that the others make, and goes on to the next call."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    if rank != 2:
        dist.new_group([0, 1, 2, 3])
    dist.all_reduce(torch.ones(4))  # <- bug


job(main)
