# expect: SC204 culprits= ranks=2 stall=2
# thread: NVIDIA/nccl#479
"""Both ranks send before they receive."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
mine, theirs = torch.full((1 << 22,), float(rank)), torch.empty(1 << 22)
if FAULTY or rank == 0:
    dist.send(mine, 1 - rank)  # <- bug
    dist.recv(theirs, 1 - rank)
else:
    dist.recv(theirs, 1 - rank)
    dist.send(mine, 1 - rank)
dist.barrier()
dist.destroy_process_group()
