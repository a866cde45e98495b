# expect: SC101 culprits=2 ranks=4
"""One rank logs before it synchronises, the others after."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
gradient, metric = torch.ones(8), torch.ones(8)
if dist.get_rank() == 2:
    dist.reduce(metric, 0)  # <- bug
    dist.all_reduce(gradient)
else:
    dist.all_reduce(gradient)
    dist.reduce(metric, 0)
