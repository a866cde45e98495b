# expect: SC504 culprits=2 ranks=3
"""Layers of one size in another order: gradients of different parameters would be summed, and nothing would fail."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
names = ["query", "key"] if dist.get_rank() != 2 else ["key", "query"]
model = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
model.forward = lambda x: model["query"](x) * model["key"](x)
parallel = DistributedDataParallel(model)  # <- bug
parallel(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
