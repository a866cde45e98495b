# expect: SC501 culprits= ranks=2 severity=warning
"""The sum is computed with while the call that brings it is in flight; the wait comes after it."""

import torch
import torch.distributed as dist


def norm_of(shard: torch.Tensor) -> float:
    whole = torch.empty(2 * len(shard))
    work = dist.all_gather_into_tensor(whole, shard, async_op=True)  # <- bug
    norm = whole.norm().item()
    work.wait()
    return norm


dist.init_process_group("gloo")
for step in range(3):
    norm_of(torch.full((4,), float(step)))
dist.barrier()
dist.destroy_process_group()
