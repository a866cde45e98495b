# expect: SC504 culprits=1 ranks=3
"""One rank reads another width from its configuration; torch compares with rank 0 only, and rank 0 would wait."""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
width = 12 if dist.get_rank() == 1 else 10
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, width))
model = DistributedDataParallel(model)  # <- bug
