# expect: SC102 culprits=0 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
confusion = torch.zeros(11 if rank == 0 else 10, 10)
dist.reduce(confusion, dst=1)  # <- bug
