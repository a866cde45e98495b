# expect: SC501 ranks=2 severity=warning
"""The work is dropped at once, and the function goes on to read the result, which ends with the function."""

import torch
import torch.distributed as dist


def mean_of(value: float) -> float:
    total = torch.full((4,), value)
    dist.all_reduce(total, async_op=True)  # <- bug
    return float(total.sum()) / dist.get_world_size()


dist.init_process_group("gloo")
for step in range(3):
    mean_of(step)
    dist.barrier()
dist.destroy_process_group()
