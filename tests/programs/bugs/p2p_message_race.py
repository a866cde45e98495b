# expect: SC305 culprits= ranks=3 severity=warning
"""The collector takes the first message that comes, and then waits for the one of rank 1, which is slower here."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
message = torch.zeros(4)
if rank == 0:
    dist.recv(message)
    dist.recv(message, src=1)  # <- bug
else:
    time.sleep(0.5 * (rank == 1))
    dist.send(message, dst=0)
dist.destroy_process_group()
