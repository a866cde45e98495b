# ranks=2
"""Results that nobody reads: the work and the tensor are dropped together."""

import torch
import torch.distributed as dist


def count(value: float) -> None:
    total = torch.full((4,), value)
    dist.all_reduce(total, async_op=True)


dist.init_process_group("gloo")
for step in range(3):
    count(step)
    dist.barrier()
dist.destroy_process_group()
