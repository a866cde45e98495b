# expect: SC101 culprits=0 ranks=3
"""After many good rounds the evaluation on rank 0 uses gather; the others were changed to all_gather."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for _ in range(200):
    dist.all_reduce(torch.ones(1))
scores = torch.rand(5)
parts = [torch.empty(5) for _ in range(world)]
if rank == 0:
    dist.gather(scores, parts, dst=0)  # <- bug
else:
    dist.all_gather(parts, scores)
