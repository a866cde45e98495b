# expect: SC201 culprits=1 ranks=3 stall=2
"""Rank 1 is still at its data when the others want to meet; nothing is recorded of it yet."""

import os
import threading

import torch.distributed as dist

if os.environ["RANK"] == "1":
    threading.Event().wait(60)
dist.init_process_group("gloo")  # <- bug
dist.barrier()
