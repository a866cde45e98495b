# expect: SC601 culprits=0 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pieces = [torch.ones(3) for _ in range(5 if rank == 0 else 4)]
mine = torch.empty(3)
dist.reduce_scatter(mine, pieces)  # <- bug
