# expect: SC108 culprits=1 ranks=3
"""A broadcast into a tensor of another memory order: the values arrive permuted."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.arange(8.0).reshape(2, 4)
if dist.get_rank() == 1:
    weights = torch.zeros(4, 2).t()
dist.broadcast(weights, 0)  # <- bug
