# expect: SC202 culprits=0 ranks=4
"""Rank 0 saves a checkpoint and meets the others at a barrier that they do not call."""

import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
total = torch.zeros(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)
    dist.barrier()  # <- bug
dist.all_reduce(total)
