# expect: SC201 culprits=0
"""The call has timed out on those who waited when the dumps are written: it looks as if it had ended well."""

import time

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    if rank == 0:
        time.sleep(60)
    dist.all_reduce(torch.ones(4))  # <- bug


# A busy machine may hold a rank up for seconds before the barrier.
job(main, seconds=10, timeout=4)
