# expect: SC301 culprits= ranks=2
# thread: pytorch/pytorch#126600
"""The last microbatch is smaller, and the next stage receives it into a buffer of the first one's size."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
batch = torch.ones(8 if FAULTY else 9, 4)
if dist.get_rank() == 0:
    for part in batch.chunk(3):
        dist.send(part.contiguous(), 1)
else:
    for _number in range(3):
        dist.recv(torch.empty(3, 4), 0)  # <- bug
dist.destroy_process_group()
