# expect: SC204 culprits=0 ranks=3 stall=2
"""One rank uses two groups in the other order."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
first, second = dist.new_group(), dist.new_group()
x = torch.ones(2)
if dist.get_rank() == 0:
    dist.all_reduce(x, group=second)  # <- bug
    dist.all_reduce(x, group=first)
else:
    dist.all_reduce(x, group=first)
    dist.all_reduce(x, group=second)
