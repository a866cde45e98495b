# expect: SC601 ranks=3
"""Gloo has no 16-bit integers; every rank is refused."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
audio = torch.zeros(16, dtype=torch.int16)
dist.all_reduce(audio)  # <- bug
