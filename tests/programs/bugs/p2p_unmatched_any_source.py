# expect: SC304 culprits= ranks=3
"""The collector expects a result from itself too."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
rank, world = dist.get_rank(), dist.get_world_size()
if rank == 0:
    for _ in range(world):
        dist.recv(torch.empty(4))  # <- bug
else:
    dist.send(torch.ones(4), dst=0)
