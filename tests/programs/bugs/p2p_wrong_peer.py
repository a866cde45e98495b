# expect: SC304 culprits= ranks=4
"""A pipeline whose second stage skips the third and sends to the last one, which has finished."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
rank = dist.get_rank()
activation = torch.ones(4)
if rank == 0:
    dist.send(activation, dst=1)
elif rank == 1:
    dist.recv(activation, src=0)
    dist.send(activation, dst=3)  # <- bug
