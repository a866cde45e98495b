# expect: SC601 culprits=1 ranks=3
"""A column is reduced where it lies: Gloo takes its memory for contiguous, and adds up the neighbours."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
table = torch.arange(8.0).reshape(4, 2)
column = table[:, 0] if dist.get_rank() == 1 else table[:, 0].contiguous()
dist.all_reduce(column)  # <- bug
