# expect: SC601 culprits=0 ranks=3
"""One rank destroys a group that all of them use once more."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
metrics = dist.new_group()
dist.all_reduce(torch.ones(2), group=metrics)
if rank == 0:
    dist.destroy_process_group(metrics)
dist.all_reduce(torch.ones(2), group=metrics)  # <- bug
dist.destroy_process_group()
