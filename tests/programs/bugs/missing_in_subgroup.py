# expect: SC201 culprits=3 ranks=4
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([0, 1, 3], timeout=timedelta(seconds=3))
if rank in (0, 1):
    dist.broadcast(torch.ones(2), src=0, group=group)  # <- bug
elif rank == 3:
    threading.Event().wait(30)
dist.barrier()
