# expect: SC601 culprits= ranks=2
# thread: pytorch/pytorch#192920
"""Every other element is summed to rank 0, and Gloo sums the elements between them."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
series = torch.arange(6.0)[::2]
dist.reduce(series if FAULTY else series.contiguous(), dst=0)  # <- bug
dist.destroy_process_group()
