# expect: SC101 culprits= ranks=2
"""Two ranks, two opinions: nobody is in the majority."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
statistics = torch.zeros(2, 3)
if dist.get_rank() == 0:
    dist.all_reduce(statistics)
else:
    dist.reduce(statistics, dst=0)  # <- bug
