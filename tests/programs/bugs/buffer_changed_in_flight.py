# expect: SC502 culprits=0 ranks=2
"""One rank clears its gradient before the sum has begun."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
late = dist.new_group([0, 1])
gradient = torch.ones(64)
if dist.get_rank() == 1:
    dist.barrier(group=late)
work = dist.all_reduce(gradient, async_op=True)  # <- bug
if dist.get_rank() == 0:
    gradient.zero_()
    dist.barrier(group=late)
work.wait()
dist.destroy_process_group()
