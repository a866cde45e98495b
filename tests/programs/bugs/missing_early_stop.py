# expect: SC201 culprits=2 ranks=4
"""Rank 2 decides on its own that it is done with this epoch, and goes on evaluating."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
rank = dist.get_rank()
for step in range(6):
    if rank == 2 and step == 4:
        time.sleep(30)
        break
    dist.all_reduce(torch.ones(3))  # <- bug
