# expect: SC102 culprits=3
"""The last batch of one rank is smaller, and so is what it sends to the root, which has room for more."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    x = torch.ones(6 if rank == 3 else 8)
    dist.gather(x, [torch.empty(8) for _ in range(4)] if rank == 0 else None)  # <- bug
    dist.barrier()


job(main)
