# ranks=3
"""Groups come and go while the default group stays."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for turn in range(3):
    group = dist.new_group([turn, (turn + 1) % 3])
    if rank in (turn, (turn + 1) % 3):
        dist.all_reduce(torch.ones(turn + 1), group=group)
        dist.destroy_process_group(group)
    dist.barrier()
dist.destroy_process_group()
