# expect: SC201 culprits=2 ranks=3 stall=2 line=none
"""One rank still prepares its data while the others, which say who they are, meet."""

import os
import threading

import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == 2:
    threading.Event().wait()
dist.init_process_group("gloo", rank=rank, world_size=world)
dist.barrier()
