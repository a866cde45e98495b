# expect: SC102 culprits=3 ranks=4
"""The last shard is shorter, and one all_reduce is done on the vector of per-sample losses."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
samples = torch.arange(31.0)[rank * 8 : (rank + 1) * 8]
for start in range(0, 8, 4):
    losses = (samples[start : start + 4] - 1) ** 2
    dist.all_reduce(losses)  # <- bug
