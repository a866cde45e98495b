# expect: SC504 culprits=1 ranks=3
# thread: yifan123/flow_grpo#245
"""An adapter is trainable on the rank that made it, and frozen where it was loaded."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
model = nn.ModuleDict({"base": nn.Linear(4, 4), "adapter": nn.Linear(4, 4, bias=False)})
model.forward = lambda x: model["base"](x) + model["adapter"](x)
if FAULTY and dist.get_rank() == 1:
    model["adapter"].requires_grad_(False)
parallel = DistributedDataParallel(model)  # <- bug
parallel(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
