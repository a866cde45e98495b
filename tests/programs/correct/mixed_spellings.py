# ranks=3
"""all_gather on one rank and all_gather_into_tensor on another work together."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine = torch.full((2,), float(rank))
if rank == 0:
    parts = [torch.empty(2) for _ in range(world)]
    dist.all_gather(parts, mine)
    gathered = torch.cat(parts)
else:
    gathered = torch.empty(2 * world)
    dist.all_gather_into_tensor(gathered, mine)
assert gathered.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
