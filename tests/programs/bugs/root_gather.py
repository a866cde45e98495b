# expect: SC105 culprits=2 ranks=4
"""Rank 2 believes that it is the one that collects."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
collector = 2 if rank == 2 else 0
rows = torch.zeros(2, 2)
into = [torch.empty(2, 2) for _ in range(4)] if rank == collector else None
dist.gather(rows, into, dst=collector)  # <- bug
