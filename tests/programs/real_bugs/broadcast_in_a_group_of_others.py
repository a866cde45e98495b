# expect: SC402 culprits=0-1 ranks=4 says=SC601
# thread: pytorch/pytorch#67600
"""Ranks 0 and 1 broadcast in the group of ranks 2 and 3: nothing is sent, and only a warning says so."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
first, second = dist.new_group([0, 1]), dist.new_group([2, 3])
value = torch.tensor([float(rank)])
if rank < 2:
    dist.broadcast(value, 1, group=second if FAULTY else first)  # <- bug
dist.barrier()
dist.destroy_process_group()
