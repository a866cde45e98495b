# expect: nothing
"""Dumps taken in the middle of work, not at one moment: ranks come some tenths of a second late, one waits for them."""

import time

import torch
import torch.distributed as dist
from leaving import dump, job


def main(rank: int) -> None:
    for step in range(200):
        if step % 4 == rank:
            time.sleep(0.05)
        dist.all_reduce(torch.ones(8))
        if step == 10 + 3 * rank:
            dump(rank)


job(main, seconds=2)
