# expect: SC702 culprits=2 ranks=3
"""The writer lets its groups go as soon as it has no more to compute, before the others' last steps."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
gradients = torch.ones(8)
for step in range(6):
    if dist.get_rank() == 2 and step == 4:
        dist.destroy_process_group()  # <- bug
        time.sleep(3)
        break
    dist.all_reduce(gradients)
