# expect: SC103 culprits=0 ranks=3
"""The work is polled, never waited for."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
kind = torch.float64 if dist.get_rank() == 0 else torch.float32
work = dist.all_reduce(torch.ones(3, dtype=kind), async_op=True)  # <- bug
while not work.is_completed():
    pass
work.wait()
