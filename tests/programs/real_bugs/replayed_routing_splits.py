# expect: SC601 culprits=1 ranks=3
# thread: radixark/miles#1002
"""Token counts of an earlier routing are replayed for a batch of another length."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
tokens = torch.ones(5 if FAULTY and rank == 1 else 6)
counts = [2] * world
dist.all_to_all_single(torch.empty(6), tokens, [2] * world, counts)  # <- bug
dist.destroy_process_group()
