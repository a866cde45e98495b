# expect: SC601 culprits= ranks=2
# thread: facebookresearch/fairscale#905
"""The flat gradient is padded for the size of another group than the one that it is scattered in."""

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import pad

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
world = dist.get_world_size()
single = [dist.new_group([rank]) for rank in range(world)][dist.get_rank()]
multiple = dist.get_world_size(single) if FAULTY else world
gradient = torch.ones(5)
gradient = pad(gradient, (0, -len(gradient) % multiple))
shard = torch.empty(-(-len(gradient) // world))
dist.reduce_scatter_tensor(shard, gradient)  # <- bug
dist.destroy_process_group()
