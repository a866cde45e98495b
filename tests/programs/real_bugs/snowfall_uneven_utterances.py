# expect: SC702 culprits=1 ranks=2 stall=2
# thread: k2-fsa/snowfall#152
"""The sampler gives the last rank fewer utterances, and the all-reduce of a backward pass waits for ever."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world, total = dist.get_rank(), dist.get_world_size(), 7
share = -(-total // world) if FAULTY else total // world
utterances = range(rank * share, min((rank + 1) * share, total))
model = DistributedDataParallel(nn.Linear(3, 1))
for number in utterances:
    model(torch.full((2, 3), float(number))).sum().backward()  # <- bug
