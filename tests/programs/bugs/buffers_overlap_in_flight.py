# expect: SC503 culprits= ranks=2
"""Two sums in flight share four elements."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
late = dist.new_group([0, 1])
flat = torch.ones(20)
if dist.get_rank() == 1:
    dist.barrier(group=late)
first = dist.all_reduce(flat[:12], async_op=True)
second = dist.all_reduce(flat[8:], async_op=True)  # <- bug
if dist.get_rank() == 0:
    dist.barrier(group=late)
first.wait()
second.wait()
dist.destroy_process_group()
