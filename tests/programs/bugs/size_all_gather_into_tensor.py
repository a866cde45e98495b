# expect: SC102 culprits=0 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
rows = 6 if rank == 0 else 5
mine = torch.full((rows, 3), float(rank))
everyone = torch.empty(world * rows, 3)
dist.all_gather_into_tensor(everyone, mine)  # <- bug
