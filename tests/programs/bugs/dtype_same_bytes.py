# expect: SC103 culprits=1 ranks=3
"""int32 and float32 have the same size: today this ends in a wrong sum, without any error."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
kind = torch.int32 if dist.get_rank() == 1 else torch.float32
weights = torch.ones(8).to(kind)
work = dist.all_reduce(weights, async_op=True)  # <- bug
work.wait()
