# expect: SC104 culprits=3 ranks=4
"""The gradients are fine; the loss that is logged is reduced another way on one rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    with torch.no_grad():
        logged = loss.detach().clone()
        how = dist.ReduceOp.MAX if step == 2 and dist.get_rank() == 3 else dist.ReduceOp.SUM
        dist.all_reduce(logged, op=how)  # <- bug
