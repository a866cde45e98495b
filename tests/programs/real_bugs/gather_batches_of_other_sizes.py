# expect: SC102 culprits=2 ranks=3
# thread: pytorch/pytorch#23299
"""Batches of different sizes are gathered to rank 0, for which there is no gatherv."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
rows = 3 if rank == 2 else 4
batch = torch.ones(rows if FAULTY else 4, 2)
parts = [torch.empty(4, 2) for _ in range(world)] if rank == 0 else None
dist.gather(batch, parts, dst=0)  # <- bug
dist.destroy_process_group()
