# expect: SC601 culprits= ranks=2
# thread: pytorch/pytorch#192920
"""A column of a matrix is broadcast: Gloo takes it for contiguous, and writes over its neighbours."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
weights = torch.full((2, 2), float(dist.get_rank()))
if FAULTY:
    dist.broadcast(weights[:, 0], src=0)  # <- bug
else:
    column = weights[:, 0].contiguous()
    dist.broadcast(column, src=0)
    weights[:, 0] = column
print(weights.tolist())
dist.destroy_process_group()
