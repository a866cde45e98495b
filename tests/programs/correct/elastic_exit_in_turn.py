# ranks=3
"""Ranks finish at different times, without destroying their group."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(2)
dist.all_reduce(value)
time.sleep(0.3 * dist.get_rank())
