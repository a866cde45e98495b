# expect: SC102 culprits=1 ranks=4
"""Rank 1 saw no positive sample at all."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
labels = torch.zeros(6) if dist.get_rank() == 1 else torch.ones(6)
positives = labels[labels > 0]
dist.all_reduce(positives)  # <- bug
