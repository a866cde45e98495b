# expect: SC501 culprits=1 ranks=2 stall=2
"""The work of an asynchronous receive is not kept: Gloo forgets that there is room for the message."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    time.sleep(0.5)
    dist.send(torch.ones(1 << 20), dst=1)
else:
    dist.irecv(torch.empty(1 << 20), src=0)  # <- bug
dist.barrier()
