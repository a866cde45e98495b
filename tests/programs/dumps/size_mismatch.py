# expect: SC102 culprits=3
"""The last batch of one rank is smaller, and so is the tensor that it gathers."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    x = torch.ones(6 if rank == 3 else 8)
    dist.all_gather([torch.empty_like(x) for _ in range(4)], x)  # <- bug


job(main)
