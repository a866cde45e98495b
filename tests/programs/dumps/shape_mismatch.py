# expect: SC109 culprits=0
"""One rank sums the transposed matrix."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    x = torch.ones(20, 10)
    dist.all_reduce(x.t().contiguous() if rank == 0 else x)  # <- bug
    dist.barrier()


job(main)
