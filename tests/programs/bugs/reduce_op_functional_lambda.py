# expect: SC104 culprits=0 ranks=3
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol

dist.init_process_group("gloo")
world = dist.group.WORLD
how = "max" if dist.get_rank() == 0 else "sum"
merge = lambda tensor: funcol.all_reduce(tensor, how, world)  # noqa: E731  # <- bug
print(merge(torch.ones(5)).tolist())
