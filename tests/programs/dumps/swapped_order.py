# expect: SC203 culprits=3
"""One rank broadcasts before it reduces, the others after."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    x, y = torch.ones(16), torch.ones(16)
    if rank == 3:
        dist.broadcast(y, src=0)  # <- bug
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.broadcast(y, src=0)
    dist.barrier()


job(main)
