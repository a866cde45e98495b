# expect: SC105 culprits= ranks=4
"""Every rank broadcasts from itself: four ranks, four roots."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
state = torch.full((3,), float(dist.get_rank()))
dist.broadcast(state, src=dist.get_rank())  # <- bug
