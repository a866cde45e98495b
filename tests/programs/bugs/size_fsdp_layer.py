# expect: SC102 culprits=3 ranks=4
"""FSDP2, and one rank builds a wider model from its own configuration."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (4,))
hidden = 96 if dist.get_rank() == 3 else 64
model = nn.Sequential(nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 4))
fully_shard(model, mesh=mesh)
loss = model(torch.randn(2, 16)).sum()  # <- bug
loss.backward()
