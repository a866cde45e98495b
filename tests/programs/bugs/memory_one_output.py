# expect: SC503 ranks=2
"""All parts are gathered into one tensor, a list of which was made by multiplication."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
parts = [torch.zeros(4)] * dist.get_world_size()
dist.all_gather(parts, torch.full((4,), float(dist.get_rank())))  # <- bug
