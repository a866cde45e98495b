# expect: SC110 culprits=0 ranks=3
"""A dict's order differs on rank 0, so that its tensors are coalesced in another order."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
names = ["weight", "bias", "scale"]
if dist.get_rank() == 0:
    names.reverse()
sizes = {"weight": 12, "bias": 3, "scale": 1}
dist.all_reduce_coalesced([torch.ones(sizes[name]) for name in names])  # <- bug
