# expect: SC109 culprits=2 ranks=3
"""Height and width are swapped on one rank: every element arrives, in the wrong place."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
size = (3, 8, 6) if dist.get_rank() == 2 else (3, 6, 8)
image = torch.zeros(size)
dist.broadcast(image, src=0)  # <- bug
