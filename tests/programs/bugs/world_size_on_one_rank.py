# expect: SC401 culprits=1 ranks=4 stall=2
"""One rank has an old setting, by which it and its neighbours are all."""

import os

import torch.distributed as dist

rank = int(os.environ["RANK"])
SETTINGS = {1: 3}
if rank in SETTINGS:
    dist.init_process_group("gloo", rank=rank, world_size=SETTINGS[rank])  # <- bug
else:
    dist.init_process_group("gloo", rank=rank, world_size=4)
dist.barrier()
