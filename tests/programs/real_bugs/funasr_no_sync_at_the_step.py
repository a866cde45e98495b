# expect: SC904 culprits= ranks=2 says=nothing
# thread: modelscope/FunASR#3472
# simcoll: not found, because all ranks make the same calls: what is wrong is that the last microbatch is not summed.
"""The first microbatch is summed and the last one is not, so that the optimizer steps on gradients of one rank."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in range(4):
    last = (batch if FAULTY else batch + 1) % 2 == 0
    with nullcontext() if last else model.no_sync():
        model(torch.full((1, 2), float(dist.get_rank() + batch))).sum().backward()
    if batch % 2:
        optimizer.step()  # <- bug
        optimizer.zero_grad()
dist.destroy_process_group()
