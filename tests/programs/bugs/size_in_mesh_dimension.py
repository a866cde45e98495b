# expect: SC102 culprits= ranks=4
"""A 2-D mesh: the mistake is in the column of ranks 1 and 3 alone."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
rank = dist.get_rank()
dist.all_reduce(torch.ones(4), group=mesh.get_group("tp"))
activations = torch.ones(6 if rank == 3 else 4)
dist.all_reduce(activations, group=mesh.get_group("dp"))  # <- bug
