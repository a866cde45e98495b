# expect: SC504 culprits= ranks=2
# thread: pytorch/pytorch#68803
"""DDP is told to ignore other parameters on one rank."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
ignored = ["1.weight"] if not FAULTY or dist.get_rank() == 0 else ["0.weight"]
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
parallel = DistributedDataParallel(model)  # <- bug
parallel(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
