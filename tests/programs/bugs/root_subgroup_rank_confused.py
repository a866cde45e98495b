# expect: SC105 culprits=3 ranks=4
"""Global rank 1 is group rank 0; rank 3 passes it as a group rank."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
experts = dist.new_group([1, 2, 3])
table = torch.zeros(4)
if rank in (1, 2):
    dist.broadcast(table, src=1, group=experts)
elif rank == 3:
    dist.broadcast(table, group_src=1, group=experts)  # <- bug
dist.barrier()
