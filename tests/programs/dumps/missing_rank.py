# expect: SC201 culprits=3
"""One rank is stuck in its own code while the others wait for it."""

import time

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    if rank == 3:
        time.sleep(60)
    dist.all_reduce(torch.ones(4))  # <- bug


job(main)
