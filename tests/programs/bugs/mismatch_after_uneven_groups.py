# expect: SC102 culprits=1 ranks=4
"""Sequence numbers differ from rank to rank in all groups but the one that matters."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
low, high = dist.new_group([0, 1, 2]), dist.new_group([2, 3])
for _ in range(5):
    if rank >= 2:
        dist.all_reduce(torch.ones(3), group=high)
if rank < 3:
    for step in range(3):
        size = 9 if rank == 1 and step == 2 else 8
        dist.all_gather_into_tensor(torch.empty(3 * size), torch.ones(size), group=low)  # <- bug
dist.barrier()
