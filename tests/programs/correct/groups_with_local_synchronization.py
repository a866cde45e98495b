# ranks=3
"""Groups that their members make, as use_local_synchronization allows, and groups that all ranks make."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() < 2:
    pair = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(2), group=pair)
last = dist.new_group([1, 2])
if dist.get_rank() > 0:
    dist.all_reduce(torch.ones(2), group=last)
dist.barrier()
dist.destroy_process_group()
