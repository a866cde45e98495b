# expect: SC301 culprits=3 ranks=4
"""A collector takes results in the order in which they come; one worker's has another length."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    for _ in range(3):
        dist.recv(torch.zeros(5), tag=7)
else:
    dist.send(torch.ones(4 if rank == 3 else 5), dst=0, tag=7)  # <- bug
dist.barrier()
