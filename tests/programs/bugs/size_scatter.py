# expect: SC102 culprits=2 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
shards = list(torch.arange(48.0).reshape(4, 12)) if rank == 0 else None
mine = torch.empty(10 if rank == 2 else 12)
dist.scatter(mine, shards, src=0)  # <- bug
