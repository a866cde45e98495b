# expect: SC301 culprits= ranks=2
# thread: NVIDIA/Megatron-LM#1485
"""With two pipeline stages the next rank is the previous one: an activation is received as a gradient."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
peer = 1 - rank
activation, gradient = (4, 8), (2, 8)
if rank == 0:
    ops = [
        dist.P2POp(dist.isend, torch.ones(activation), peer),
        dist.P2POp(dist.isend, torch.ones(gradient), peer),
    ]
elif FAULTY:
    ops = [
        dist.P2POp(dist.irecv, torch.empty(gradient), peer),
        dist.P2POp(dist.irecv, torch.empty(activation), peer),
    ]
else:
    ops = [
        dist.P2POp(dist.irecv, torch.empty(activation), peer),
        dist.P2POp(dist.irecv, torch.empty(gradient), peer),
    ]
for work in dist.batch_isend_irecv(ops):  # <- bug
    work.wait()
dist.barrier()
dist.destroy_process_group()
