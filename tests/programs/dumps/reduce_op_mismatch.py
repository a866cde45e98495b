# expect: nothing unknown=reduce_op
"""One rank takes the maximum: no dump says so."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)


job(main)
