# expect: SC601 culprits=0 ranks=3
"""The splits add up to the right sum; the negative one makes Gloo write outside the buffer today."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tokens = torch.ones(6)
splits = [4, 3, -1] if dist.get_rank() == 0 else [2, 2, 2]
dist.all_to_all_single(torch.empty(6), tokens, splits, splits)  # <- bug
