# expect: SC402 culprits=1 ranks=3
"""The wrong rank makes the call: torch only warns, and nobody else ever makes it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
evens = dist.new_group([0, 2])
best = torch.full((1,), float(dist.get_rank()))
if dist.get_rank() == 1:
    dist.all_reduce(best, op=dist.ReduceOp.MAX, group=evens)  # <- bug
dist.barrier()
dist.destroy_process_group()
