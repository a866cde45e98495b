# expect: SC301 culprits=2 ranks=4
"""A ring in which one rank sends less than its neighbour has room for: the rest of the buffer stays as it was."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
outgoing, incoming = torch.ones(6 if rank == 2 else 8), torch.zeros(8)
works = [
    dist.isend(outgoing, dst=(rank + 1) % world),  # <- bug
    dist.irecv(incoming, src=(rank - 1) % world),
]
for work in works:
    work.wait()
dist.barrier()
