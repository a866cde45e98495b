# expect: SC701 culprits= ranks=2
# thread: lhotse-speech/lhotse#554
"""Each rank's data takes another branch of the model, and DDP was not told to look for unused parameters."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTY = sys.argv[1:] != ["fixed"]


class Branches(nn.Module):
    """A layer for each of two data sets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.layers[which](x).sum()


dist.init_process_group("gloo")
model = DistributedDataParallel(Branches(), find_unused_parameters=not FAULTY)
for _step in range(2):
    model(torch.ones(2, 3), dist.get_rank()).backward()  # <- bug
dist.destroy_process_group()
