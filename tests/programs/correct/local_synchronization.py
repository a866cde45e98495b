# ranks=4
"""Only members create the group, and the two halves create different ones."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
ranks = [0, 1] if rank < 2 else [2, 3]
half = dist.new_group(ranks, use_local_synchronization=True)
value = torch.tensor(float(rank))
dist.all_reduce(value, group=half)
assert value.item() == (1.0 if rank < 2 else 5.0)
