# expect: SC402 culprits=1,3 ranks=4
"""A rank outside the group is given no work to wait for, and stumbles over it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
evens = dist.new_group([0, 2])
loss = torch.ones(1)
work = dist.all_reduce(loss, group=evens, async_op=True)  # <- bug
work.wait()
dist.barrier()
