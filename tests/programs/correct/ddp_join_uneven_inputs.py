# ranks=3
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(3, 1))
steps = 0
with model.join():
    for _ in range(2 + 2 * dist.get_rank()):
        model(torch.ones(1, 3)).sum().backward()
        steps += 1
assert steps == 2 + 2 * dist.get_rank()
