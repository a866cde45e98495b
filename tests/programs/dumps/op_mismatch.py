# expect: SC101 culprits=2
"""One rank gathers where the others reduce; both move equally much."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    x = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(x)
    if rank == 2:
        dist.broadcast(x, src=0)  # <- bug
    else:
        dist.all_reduce(x)


job(main)
