# ranks=4
"""FSDP2 in two layers of wrapping, on a hybrid mesh, with uneven parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 3))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model.set_requires_gradient_sync(step != 1)
    model(torch.ones(2, 7)).sum().backward()
    optimiser.step()
    optimiser.zero_grad()
