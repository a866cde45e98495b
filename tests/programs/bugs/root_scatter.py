# expect: SC105 culprits=1 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
mine = torch.empty(3)
pieces = list(torch.ones(4, 3)) if rank == 0 else None
source = 3 if rank == 1 else 0
dist.scatter(mine, pieces, source)  # <- bug
