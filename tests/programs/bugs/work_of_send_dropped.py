# expect: SC501 culprits=0 ranks=2 stall=2
"""The work of an asynchronous send is not kept: Gloo forgets the message before the other rank comes for it."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    dist.isend(torch.ones(1 << 20), dst=1)  # <- bug
else:
    time.sleep(0.5)
    dist.recv(torch.empty(1 << 20), src=0)
dist.barrier()
