# expect: SC301 culprits= ranks=2
"""The receiver allocates for yesterday's hidden size: Gloo aborts a process that receives more than it expects."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
for step in range(3):
    if rank == 0:
        dist.send(torch.ones(4, 16 if step == 2 else 12), dst=1)
    else:
        dist.recv(torch.empty(4, 12), src=0)  # <- bug
