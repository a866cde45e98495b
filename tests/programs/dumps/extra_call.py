# expect: SC202 culprits=2
"""One rank sums once more than the others, and is a call behind them from there on."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    for step in range(4):
        dist.all_reduce(torch.ones(4))
        if rank == 2 and step == 1:
            dist.all_reduce(torch.ones(4))  # <- bug
        dist.all_reduce(torch.ones(4))


job(main)
