# expect: SC101 culprits=2 ranks=3
# thread: horovod/horovod#2640
"""One node has an older version of the training code."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
old = FAULTY and rank == 2
gradient = torch.ones(6)
if old:
    dist.reduce_scatter_tensor(torch.empty(2), gradient)  # <- bug
else:
    dist.all_reduce(gradient)
dist.barrier()
dist.destroy_process_group()
