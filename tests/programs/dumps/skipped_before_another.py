# expect: SC202 culprits=1 parted=12
"""One rank leaves out a call, and meets the others in its next one, where all of them stay."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    for step in range(5):
        dist.all_reduce(torch.ones(16))
        if not (rank == 1 and step == 2):
            dist.all_reduce(torch.ones(1))  # <- bug
        dist.broadcast(torch.ones(8), src=0)


job(main)
