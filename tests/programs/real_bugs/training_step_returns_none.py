# expect: SC202 culprits=2 ranks=3 stall=2
# thread: Lightning-AI/pytorch-lightning#5243
"""training_step returns None for a batch that is not finite, on one rank, and no backward pass follows there."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))


def training_step(batch: torch.Tensor) -> torch.Tensor | None:
    loss = model(batch).sum()
    if loss.isfinite():
        return loss
    return None if FAULTY else model(torch.zeros_like(batch)).sum() * 0


for step in range(3):
    batch = torch.ones(2, 2)
    if (dist.get_rank(), step) == (2, 1):
        batch[0, 0] = float("inf")
    if (loss := training_step(batch)) is not None:
        loss.backward()  # <- bug
    dist.barrier()
dist.destroy_process_group()
