# expect: SC301 culprits=2 ranks=3
"""A collector without a stated source has less room than one worker sends: Gloo aborts it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    if rank == 0:
        for _ in range(2):
            dist.recv(torch.zeros(5), tag=7)
    else:
        dist.send(torch.ones(6 if (rank, step) == (2, 1) else 5), dst=0, tag=7)  # <- bug
    dist.barrier()
