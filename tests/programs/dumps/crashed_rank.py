# expect: SC201 culprits=1
"""One rank dies before a call and leaves no dump: its neighbours fail, one that is none waits on."""

import os
import time

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        time.sleep(0.3)
        os._exit(0)
    dist.all_reduce(torch.ones(4))  # <- bug


job(main, seconds=6)
