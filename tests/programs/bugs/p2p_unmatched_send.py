# expect: SC304 culprits= ranks=3
"""The producer makes one more round than its consumer, which has ended."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
dist.barrier()
for _ in range(4 if rank == 0 else 3):
    if rank == 0:
        dist.send(torch.ones(4), dst=2)  # <- bug
    elif rank == 2:
        dist.recv(torch.empty(4), src=0)
