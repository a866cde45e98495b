# expect: SC601 ranks=3
"""A bitwise reduction of floats, on every rank alike."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
loss = torch.tensor(0.25)
dist.all_reduce(loss, op=dist.ReduceOp.BAND)  # <- bug
