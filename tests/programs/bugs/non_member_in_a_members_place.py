# expect: SC402 culprits=2 ranks=3
"""The condition names the wrong ranks: one outside the group calls it, and a member never comes."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
pair = dist.new_group([0, 1], timeout=timedelta(seconds=2))
if dist.get_rank() in (1, 2):
    dist.all_reduce(torch.ones(3), group=pair)  # <- bug
dist.barrier()
