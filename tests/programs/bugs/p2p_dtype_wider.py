# expect: SC302 culprits= ranks=3
"""batch_isend_irecv with double precision into single: more bytes than the buffer has room for."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
dist.barrier()
if rank == 1:
    operations = [dist.P2POp(dist.isend, torch.ones(4, dtype=torch.float64), 2)]
elif rank == 2:
    operations = [dist.P2POp(dist.irecv, torch.empty(4), 1)]
if rank:
    for work in dist.batch_isend_irecv(operations):  # <- bug
        work.wait()
