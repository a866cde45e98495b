# expect: SC102 culprits=2 ranks=4
"""Rank 2 reads another configuration, so that its second layer is wider."""

import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
hidden = 24 if dist.get_rank() == 2 else 16
model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, hidden))
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)  # <- bug
