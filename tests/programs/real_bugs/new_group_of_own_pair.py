# expect: SC401 culprits= ranks=4 stall=2
# thread: pytorch/pytorch#25390
"""Each rank makes the group that it is in, instead of all groups in one order."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [[0, 3], [1, 2]]
if FAULTY:
    [own] = [pair for pair in pairs if rank in pair]
    group = dist.new_group(own)  # <- bug
else:
    [group] = [made for made, pair in [(dist.new_group(pair), pair) for pair in pairs] if rank in pair]
dist.all_reduce(torch.ones(2), group=group)
dist.barrier()
dist.destroy_process_group()
