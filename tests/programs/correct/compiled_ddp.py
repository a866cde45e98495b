# ranks=2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
compiled = torch.compile(model, backend="aot_eager")
for _ in range(3):
    compiled(torch.ones(2, 8)).sum().backward()
