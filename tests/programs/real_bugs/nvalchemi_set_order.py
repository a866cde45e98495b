# expect: SC203 culprits=1 ranks=3 stall=2 says=SC101
# thread: NVIDIA/nvalchemi-toolkit#143
"""One collective for each output, in the order of a set, which differs from process to process."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
outputs = ["forces", "energy"] if rank == 1 else ["energy", "forces"]  # as hash seeds would have it
for name in outputs if FAULTY else sorted(outputs):
    if name == "energy":
        dist.all_reduce(torch.ones(1))
    else:
        dist.all_to_all_single(torch.empty(world), torch.ones(world))  # <- bug
dist.barrier()
dist.destroy_process_group()
