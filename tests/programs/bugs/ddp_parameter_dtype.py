# expect: SC504 culprits=0 ranks=3
"""One rank keeps its model in half precision."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
if dist.get_rank() == 0:
    model = model.to(torch.bfloat16)
model = DistributedDataParallel(model)  # <- bug
