# expect: SC201 culprits=1 ranks=2 stall=2
# thread: pytorch/pytorch#85775
"""The shorter loader begins the next epoch, and waits in the store for a seed that rank 0 has not drawn yet."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
length = 3 if rank == 0 or not FAULTY else 2
for epoch in range(2):
    if rank == 0:
        store.set(f"seed of {epoch}", "7")
    seed = int(store.get(f"seed of {epoch}"))
    torch.manual_seed(seed)
    for _batch in range(length):
        dist.all_reduce(torch.ones(2))  # <- bug
dist.destroy_process_group()
