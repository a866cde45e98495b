# expect: SC201 culprits=1 ranks=3 stall=2
"""Rank 1 sits in its own code while the others wait; the report shows its line."""

import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(2)
dist.all_reduce(x)
if dist.get_rank() == 1:
    threading.Event().wait(60)  # <- bug
dist.barrier()
