# expect: SC201 culprits=1 ranks=3
"""A rank comes to a collective when the others have given up there; all of them fail then."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
store = dist.distributed_c10d._get_default_store()
dist.barrier()
late = dist.get_rank() == 1
if late:
    store.wait(["given up by 0", "given up by 2"], timedelta(seconds=40))
try:
    dist.all_reduce(torch.ones(4))  # <- bug
except RuntimeError:
    store.set(f"given up by {dist.get_rank()}", "")
    store.wait(["given up by 1"], timedelta(seconds=40))
    raise
