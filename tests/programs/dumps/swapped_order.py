# expect: SC203 culprits=3
"""One rank broadcasts before it reduces, the others after; both are in flight at once."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    x, y = torch.ones(16), torch.ones(16)
    if rank == 3:
        works = [dist.broadcast(y, src=0, async_op=True)]  # <- bug
        works.append(dist.all_reduce(x, async_op=True))
    else:
        works = [dist.all_reduce(x, async_op=True)]
        works.append(dist.broadcast(y, src=0, async_op=True))
    for work in works:
        work.wait()


job(main)
