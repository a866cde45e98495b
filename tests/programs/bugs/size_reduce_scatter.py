# expect: SC102 culprits=1 ranks=4
"""A hand-written sharded optimiser whose padding is forgotten on one rank."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
elements = 30
padding = 0 if rank == 1 else (-elements) % world
shard = (elements + padding) // world
flat = torch.ones(shard * world)
mine = torch.empty(shard)
dist.reduce_scatter_tensor(mine, flat)  # <- bug
