# expect: SC201 culprits=1
"""One rank is gone before a call, without a word, and the others cannot tell at once: it leaves no dump."""

import os
import time

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        time.sleep(2)
        os._exit(0)
    dist.all_reduce(torch.ones(4))  # <- bug


job(main)
