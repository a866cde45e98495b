# expect: SC101 culprits=3 ranks=4
import atexit

import torch
import torch.distributed as dist


def goodbye():
    if dist.get_rank() == 3:
        dist.broadcast(torch.zeros(2), src=3)  # <- bug
    else:
        dist.barrier()


dist.init_process_group("gloo")
atexit.register(goodbye)
dist.all_reduce(torch.ones(2))
