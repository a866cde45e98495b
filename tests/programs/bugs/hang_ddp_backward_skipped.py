# expect: SC201 culprits=1 ranks=2 stall=2
"""Rank 1 skips a backward pass; DDP waits for its gradients in C++."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(4):
    loss = model(torch.randn(2, 4)).sum()
    if dist.get_rank() == 1 and step == 2:
        time.sleep(60)  # <- bug
    loss.backward()
