# expect: SC101 culprits=3 ranks=4
"""The group's ranks are 0, 1 and 2; the culprit is rank 3 of the job."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
workers = dist.new_group([1, 2, 3])
dist.barrier()
if rank != 0:
    loss = torch.tensor([float(rank)])
    if rank < 3:
        dist.all_reduce(loss, group=workers)
    else:
        dist.reduce(loss, dst=1, group=workers)  # <- bug
dist.barrier()
