# expect: SC103 culprits=2 ranks=3
# thread: modelscope/ms-swift#9550
"""The dtype of a metric's tensor is inferred, and one rank's state has become a float64 of numpy."""

import sys

import numpy as np
import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
right, count = 0.0, 4
if dist.get_rank() == 2:
    right = right + np.float64(np.all(np.array([True, True])))
dtype = None if FAULTY else torch.float64
metric = torch.tensor([right, float(count)] if dist.get_rank() != 2 else np.array([right, count]), dtype=dtype)
dist.all_reduce(metric)  # <- bug
dist.destroy_process_group()
