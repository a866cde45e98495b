# expect: SC202 culprits=1 ranks=3 stall=2
# thread: NVIDIA-NeMo/Automodel#2468
"""A rank without a valid sample skips its backward pass, in which the others sum gradients."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(3, 1))
for step in range(3):
    valid = torch.tensor(int((rank, step) != (1, 1)))
    if not FAULTY:
        dist.all_reduce(valid, dist.ReduceOp.MIN)
    if not valid:
        continue
    model(torch.ones(2, 3)).sum().backward()  # <- bug
    dist.all_reduce(torch.ones(1))
dist.barrier()
dist.destroy_process_group()
