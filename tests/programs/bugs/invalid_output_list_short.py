# expect: SC601 culprits=1 ranks=4
"""One rank has forgotten itself in the list of outputs."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine = torch.ones(3)
parts = [torch.empty(3) for _ in range(world - (rank == 1))]
dist.all_gather(parts, mine)  # <- bug
