# expect: SC105 culprits=none
"""Two ranks take themselves for the root of a gather: no dump names the root, but both have room for all."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    root = 2 if rank == 2 else 0
    room = [torch.empty(4) for _ in range(4)] if rank == root else None
    dist.gather(torch.ones(4), room, dst=root)  # <- bug


job(main)
