# expect: SC304 culprits= ranks=2
"""A rank waits for a message that the other, busy with its own work, does not send."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=2))
dist.barrier()
if dist.get_rank() == 0:
    dist.recv(torch.empty(4), src=1)  # <- bug
else:
    threading.Event().wait(30)
