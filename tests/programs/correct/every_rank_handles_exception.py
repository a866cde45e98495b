# ranks=3
"""A probe for what the backend can do, as libraries make it, and an argument error that is expected."""

import contextlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor(float(dist.get_rank()))
try:
    dist.all_reduce(value.clone(), op=dist.ReduceOp.BOR)
    bitwise_works = True
except (RuntimeError, ValueError):
    bitwise_works = False
assert not bitwise_works
dist.all_reduce(value)
assert value.item() == 3.0
with contextlib.suppress(RuntimeError, ValueError, TypeError):
    dist.all_gather([torch.empty(1)], torch.ones(2, 2, dtype=torch.int64))
dist.barrier()
