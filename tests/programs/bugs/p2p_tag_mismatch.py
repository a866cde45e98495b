# expect: SC303 culprits= ranks=2
"""The tag is the micro-batch number, which one side counts from one."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
rank = dist.get_rank()
for batch in range(3):
    if rank == 0:
        dist.send(torch.ones(4), dst=1, tag=batch)
    else:
        dist.recv(torch.empty(4), src=0, tag=batch if batch < 2 else batch + 1)  # <- bug
