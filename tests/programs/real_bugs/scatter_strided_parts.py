# expect: SC601 culprits=0 ranks=2
# thread: pytorch/pytorch#24836
"""Rank 0 scatters every second element, and Gloo sends the first three of the storage."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
part, parts = torch.zeros(3), None
if dist.get_rank() == 0:
    series = torch.linspace(0, 5, 6)
    parts = [series[::2] if FAULTY else series[::2].contiguous() for _ in range(2)]
dist.scatter(part, parts, src=0)  # <- bug
print(part.tolist())
dist.destroy_process_group()
