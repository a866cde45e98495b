# expect: SC601 ranks=2
"""An expanded scalar is broadcast: Gloo would write behind its one element."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.full((1,), float(dist.get_rank())).expand(4096)
work = dist.all_reduce(weights, async_op=True)  # <- bug
work.wait()
