# expect: SC601 culprits=1 ranks=3
"""Gloo runs other algorithms for a list of inputs and for one tensor: mixing the two aborts the process today."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine, whole = torch.empty(2), torch.ones(6)
if dist.get_rank() == 1:
    dist.reduce_scatter(mine, list(whole.chunk(3)))  # <- bug
else:
    dist.reduce_scatter_tensor(mine, whole)
