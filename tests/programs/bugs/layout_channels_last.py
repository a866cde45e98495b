# expect: SC108 culprits=1 ranks=4
"""The memory order differs, so that today wrong elements are added up without a word."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
features = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
if dist.get_rank() == 1:
    features = features.to(memory_format=torch.channels_last)
dist.all_reduce(features)  # <- bug
