# expect: SC104 culprits=1 ranks=4
"""Rank 0 swallows every exception, as careful loggers do; the report must still come."""

import contextlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
swallow = contextlib.suppress(Exception)
op = dist.ReduceOp.MIN if rank == 1 else dist.ReduceOp.SUM
with swallow:
    dist.all_reduce(torch.ones(2), op)  # <- bug
