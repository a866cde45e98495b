# expect: SC601 ranks=3
"""NCCL takes outputs of different sizes, Gloo does not."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine = torch.ones(rank + 1)
parts = [torch.empty(index + 1) for index in range(world)]
dist.all_gather(parts, mine)  # <- bug
