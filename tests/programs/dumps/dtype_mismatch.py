# expect: SC103 culprits=1 unknown=reduce_op
"""A counter is an integer on one rank: the bytes are as many, the sum is wrong."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.barrier()
    dist.all_reduce(torch.ones(5, dtype=torch.int32 if rank == 1 else torch.float32))  # <- bug
    dist.barrier()


job(main)
