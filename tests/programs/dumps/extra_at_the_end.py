# expect: SC202 culprits=2
"""One rank makes a call that the others do not make; nothing follows that could show it."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank == 2:
        dist.all_reduce(torch.ones(4))  # <- bug


job(main, seconds=5)
