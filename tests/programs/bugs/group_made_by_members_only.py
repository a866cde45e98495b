# expect: SC401 ranks=3 severity=warning
"""Only the members make a group; the job ends well, and later groups would have other numbers."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() < 2:
    pair = dist.new_group([0, 1])  # <- bug
    dist.all_reduce(torch.ones(2), group=pair)
dist.barrier()
dist.destroy_process_group()
