# expect: SC102 culprits=0
"""The root broadcasts less than the others expect, and nobody notices."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    dist.broadcast(torch.ones(6 if rank == 0 else 8), src=0)  # <- bug
    dist.barrier()


job(main)
