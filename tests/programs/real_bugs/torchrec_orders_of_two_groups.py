# expect: SC204 culprits=2 ranks=3 stall=2
# thread: meta-pytorch/torchrec#4149
"""Two groups are used in an order that depends on the rank."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
shard, replicate = dist.new_group(), dist.new_group()
rank, world = dist.get_rank(), dist.get_world_size()
embeddings, gradient = torch.ones(world), torch.ones(4)
if rank == 2 and FAULTY:
    dist.all_reduce(gradient, group=replicate)  # <- bug
    dist.all_to_all_single(torch.empty(world), embeddings, group=shard)
else:
    dist.all_to_all_single(torch.empty(world), embeddings, group=shard)
    dist.all_reduce(gradient, group=replicate)
dist.destroy_process_group()
