# expect: SC702 culprits=0 ranks=2 stall=2
# thread: pytorch/pytorch#28257
"""Rank 0 counts its epochs' steps by another number of GPUs, and is done while the others go on."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
gpus = 2 if FAULTY and dist.get_rank() == 0 else 1
for _step in range(8 // gpus):
    dist.all_reduce(torch.ones(2))  # <- bug
