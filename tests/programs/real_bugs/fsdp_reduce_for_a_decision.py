# expect: SC202 culprits=0 ranks=3 stall=2
# thread: pytorch/pytorch#77562
"""The validation loss is reduced to rank 0 only; each rank compares its own number to decide whether to save."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
best = 6.0
for epoch in range(3):
    dist.all_reduce(torch.ones(5))
    loss = torch.tensor([3.0 - epoch])
    if FAULTY:
        dist.reduce(loss, dst=0)
    else:
        dist.all_reduce(loss)
    if rank != 0 and FAULTY:
        loss = torch.tensor([3.0 - epoch])  # or a part of the sum: reduce leaves it open
    if loss.item() < best:
        best = loss.item()
        dist.all_gather_into_tensor(torch.empty(2 * world), torch.ones(2))  # <- bug
dist.destroy_process_group()
