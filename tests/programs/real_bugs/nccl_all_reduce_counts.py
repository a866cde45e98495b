# expect: SC102 culprits=1 ranks=3
# thread: NVIDIA/nccl#1417
"""Ranks sum buffers of different lengths; NCCL may hang, or end with a tail that is wrong."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
length = 1000 if FAULTY and dist.get_rank() == 1 else 1024
dist.all_reduce(torch.ones(length))  # <- bug
dist.destroy_process_group()
