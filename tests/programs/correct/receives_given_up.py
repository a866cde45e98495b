# ranks=2
"""A rank asks for a message with a deadline of its own, in a group for that, and goes on without it."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
probe = dist.new_group([0, 1], timeout=timedelta(seconds=1))
if dist.get_rank() == 0:
    try:
        dist.recv(torch.empty(1), src=1, group=probe)
    except RuntimeError:
        print("no news")
dist.barrier()
