# expect: SC702 culprits=1-2 ranks=3 stall=2 blames=0
# thread: facebookresearch/pytext#585
"""Only rank 0 remembers the best epoch; the others lose patience first and leave."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, best, since = dist.get_rank(), 9.0, 0
for epoch in range(6):
    score = torch.tensor([5.0 - epoch])
    dist.all_reduce(score, dist.ReduceOp.MAX)  # <- bug
    since += 1
    if score.item() < best and (rank == 0 or not FAULTY):
        best, since = score.item(), 0
    if since >= 3:
        break
