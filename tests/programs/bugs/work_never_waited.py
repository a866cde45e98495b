# expect: SC501 culprits= ranks=2 severity=warning
"""The average is read before it is there."""

import torch
import torch.distributed as dist


def average(value: torch.Tensor) -> float:
    dist.all_reduce(value, async_op=True)  # <- bug
    return value.item() / dist.get_world_size()


dist.init_process_group("gloo")
losses = [torch.ones(1) for _ in range(3)]
print([average(loss) for loss in losses])
dist.barrier()
dist.destroy_process_group()
