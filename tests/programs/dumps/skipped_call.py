# expect: SC202 culprits=1 code=lines parted=12
"""One rank leaves out the sum of a metric in the middle; from there on it is a call ahead, and nothing breaks."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    for step in range(5):
        dist.all_reduce(torch.ones(4))
        if not (rank == 1 and step == 2):
            dist.all_reduce(torch.ones(4))  # <- bug
        dist.all_reduce(torch.ones(4))


job(main)
