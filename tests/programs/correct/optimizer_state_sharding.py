# ranks=2
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(9, 5), nn.Linear(5, 1)))
optimiser = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
for _ in range(2):
    model(torch.ones(2, 9)).sum().backward()
    optimiser.step()
    optimiser.zero_grad()
optimiser.consolidate_state_dict(to=0)
