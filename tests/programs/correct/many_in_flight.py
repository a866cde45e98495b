# ranks=2
"""Sixty-four works in flight, waited for in reverse, some never."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensors = [torch.full((index + 1,), 1.0) for index in range(64)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
for work in reversed(works):
    work.wait()
assert all(tensor.eq(2).all() for tensor in tensors)
dist.all_reduce(torch.ones(3), async_op=True)
dist.barrier()
