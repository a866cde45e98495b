# expect: SC402 culprits=1,3 ranks=4 severity=warning
"""Every rank makes the call of some: those outside go on with what they had."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
evens = dist.new_group([0, 2])
counts = torch.ones(2)
for _ in range(5):
    dist.all_reduce(counts, group=evens)  # <- bug
dist.barrier()
dist.destroy_process_group()
