# expect: SC101 culprits=0 ranks=4
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("pp", "dp"))
group = mesh["dp"].get_group()
gradient = torch.ones(4)
mine = torch.empty(1)
if dist.get_rank() == 0:
    dist.all_reduce(gradient, group=group)  # <- bug
else:
    dist.reduce_scatter_tensor(mine, gradient, group=group)
