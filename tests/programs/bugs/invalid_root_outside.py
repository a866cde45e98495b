# expect: SC601 culprits=3 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.ones(4)
dist.broadcast(weights, src=4 if dist.get_rank() == 3 else 0)  # <- bug
