# expect: SC504 culprits=1 ranks=3
"""One rank freezes a layer before wrapping the model; the error is caught and reported on every rank."""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
model[0].requires_grad_(dist.get_rank() != 1)
model = DistributedDataParallel(model)  # <- bug
