# expect: SC701 culprits=2 ranks=4
"""An error in a rank's own code, while the others wait for it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
shard = list(range(rank, 10, 4))
if rank == 2:
    shard.clear()
dist.barrier()
mean = sum(shard) / len(shard)  # <- bug
dist.all_reduce(torch.tensor(mean))
