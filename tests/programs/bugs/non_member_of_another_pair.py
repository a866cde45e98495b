# expect: SC402 culprits=2 ranks=4
"""A wrong number of groups sends one rank to its neighbours' pair, while its partner waits in their own."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group(pair, timeout=timedelta(seconds=2)) for pair in ([0, 1], [2, 3])]
mine = pairs[0 if rank < 3 else 1]
dist.all_reduce(torch.ones(1))
dist.barrier(group=mine)  # <- bug
dist.destroy_process_group()
