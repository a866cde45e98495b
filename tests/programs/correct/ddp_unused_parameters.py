# ranks=2
"""Each rank uses another branch of the model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x, left):
        return self.head(self.left(x) if left else self.right(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Branches(), find_unused_parameters=True)
for step in range(4):
    model(torch.ones(2, 4), (step + dist.get_rank()) % 2 == 0).sum().backward()
assert model.module.left.weight.grad is not None
