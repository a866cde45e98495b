# expect: SC201 culprits=1,3 ranks=4
"""A condition on the local data decides who takes part."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
dist.barrier()
loss = torch.tensor(float(dist.get_rank()))
if loss.item() in (1.0, 3.0):
    threading.Event().wait(30)
dist.all_reduce(loss)  # <- bug
