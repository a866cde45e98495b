# expect: SC103 culprits=1 ranks=4
"""A split makes the group; its ranks are 1, 2 and 3, and its own methods are called."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.group.WORLD.split_group([1, 2, 3], timeout=timedelta(seconds=30))
if rank > 0:
    state = torch.zeros(3, dtype=torch.float64 if rank == 1 else torch.float32)
    group.allreduce([state])  # <- bug
dist.barrier()
