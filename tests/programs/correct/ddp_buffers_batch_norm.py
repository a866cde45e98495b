# ranks=2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
model(torch.zeros(2, 3, 8, 8))
model = DistributedDataParallel(model, broadcast_buffers=True)
for _ in range(3):
    model(torch.randn(2, 3, 8, 8)).sum().backward()
model.eval()
model(torch.randn(1, 3, 8, 8))
