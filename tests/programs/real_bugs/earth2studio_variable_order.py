# expect: SC203 culprits=2 ranks=3 says=SC102
# thread: NVIDIA/earth2studio#948
"""Variables are listed from a set: ranks gather different variables in one call."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
fields = {"pressure": torch.ones(8), "wind": torch.ones(2, 8)}
names = ["wind", "pressure"] if rank == 2 else ["pressure", "wind"]  # as hash seeds would have it
for name in names if FAULTY else sorted(names):
    field = fields[name]
    dist.all_gather([torch.empty_like(field) for _ in range(world)], field)  # <- bug
dist.destroy_process_group()
