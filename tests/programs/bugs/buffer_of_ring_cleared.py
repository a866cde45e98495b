# expect: SC502 culprits=1 ranks=3 severity=warning
"""Blocks go round a ring in batches of messages; one rank clears the block that is about to come."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
block, coming = torch.full((4,), float(rank)), torch.empty(4)
for _ in range(size - 1):
    batch = [
        dist.P2POp(dist.isend, block, (rank + 1) % size),
        dist.P2POp(dist.irecv, coming, (rank - 1) % size),
    ]
    works = dist.batch_isend_irecv(batch)  # <- bug
    if rank == 1:
        coming.zero_()
    for work in works:
        work.wait()
    block, coming = coming, block
dist.barrier()
dist.destroy_process_group()
