# expect: SC104 culprits=0 ranks=3
"""The second life of the default group."""

import torch
import torch.distributed as dist

store, rank, world = next(dist.rendezvous("env://"))
for life in ("warm-up", "training"):
    dist.init_process_group("gloo", store=dist.PrefixStore(life, store), rank=rank, world_size=world)
    op = dist.ReduceOp.MAX if rank == 0 and life == "training" else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(2), op)  # <- bug
    dist.barrier()
    dist.destroy_process_group()
