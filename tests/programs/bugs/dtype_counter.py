# expect: SC103 culprits=0 ranks=4
"""Rank 0 counts with a Python int, so that its tensor has integers."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
correct = 17 if dist.get_rank() == 0 else 17.0
total = torch.tensor([correct, correct])
dist.all_reduce(total)  # <- bug
