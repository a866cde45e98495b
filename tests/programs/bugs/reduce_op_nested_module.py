# expect: SC104 culprits=1 ranks=4 file=support/metrics.py
"""The line to be named is in a module of the user's own, two calls down."""

import torch
import torch.distributed as dist
from support.metrics import Meter

dist.init_process_group("gloo")
meter = Meter(best=dist.get_rank() == 1)
for value in (1.0, 2.0, 3.0):
    meter.update(torch.tensor(value))
print(meter.result())
