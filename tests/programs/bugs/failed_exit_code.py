# expect: SC701 culprits=0 ranks=3 line=none
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    os._exit(17)
dist.all_reduce(torch.ones(1))
