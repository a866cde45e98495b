# ranks=2
"""Gradient accumulation, buckets as views, and a static graph."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)), gradient_as_bucket_view=True, bucket_cap_mb=1
)
optimiser = torch.optim.AdamW(model.parameters())
for _ in range(3):
    with model.no_sync():
        model(torch.randn(4, 32)).mean().backward()
    model(torch.randn(4, 32)).mean().backward()
    optimiser.step()
    optimiser.zero_grad()
weight = model.module[0].weight.detach().clone()
dist.broadcast(weight, src=0)
assert torch.equal(weight, model.module[0].weight)
