# expect: SC202 culprits=1 ranks=3 stall=2
# thread: pytorch/pytorch#44353
"""One rank runs out of memory, skips the batch and goes on; its gradients are never summed."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]


def forward(batch: int) -> torch.Tensor:
    if batch == 1 and dist.get_rank() == 1:
        raise RuntimeError("out of memory")
    return torch.ones(4)


dist.init_process_group("gloo")
for batch in range(3):
    failed = torch.zeros(1)
    try:
        gradient = forward(batch)
    except RuntimeError:
        failed += 1
        if FAULTY:
            continue
    if not FAULTY:
        dist.all_reduce(failed)
        if failed.item():
            continue
    dist.all_reduce(gradient)  # <- bug
    dist.all_reduce(torch.ones(1))
dist.barrier()
dist.destroy_process_group()
