# expect: SC201 culprits=3
"""One rank returns while the others still have a collective to do with it; its dump is the first."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    if rank == 3:
        return
    dist.all_reduce(torch.ones(4))  # <- bug


job(main, seconds=6)
