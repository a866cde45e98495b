# ranks=4
"""Groups made by splitting a group, called through their own methods."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
world = dist.group.WORLD
even = world.split_group([0, 2], timeout=timedelta(seconds=30))
odd = world.split_group([1, 3], timeout=timedelta(seconds=30))
half = odd if rank % 2 else even
assert (even is None) == bool(rank % 2)
assert half.size() == 2
value = torch.tensor([float(rank)])
half.allreduce([value]).wait()
assert value.item() == (4.0 if rank % 2 else 2.0)
half.broadcast(value, 1).wait()
half.barrier().wait()
