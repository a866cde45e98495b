# expect: SC601 culprits=2 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tokens = torch.ones(6)
splits = [2, 2, 3] if rank == 2 else [2, 2, 2]
dist.all_to_all_single(torch.empty(6), tokens, [2, 2, 2], splits)  # <- bug
