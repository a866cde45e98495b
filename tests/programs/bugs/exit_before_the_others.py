# expect: SC702 culprits=2 ranks=3
"""Rank 2 has one batch less and is done before the others."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(5 - (rank == 2)):
    dist.all_reduce(torch.ones(3))  # <- bug
