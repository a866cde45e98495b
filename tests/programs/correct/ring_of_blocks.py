# ranks=3
"""Blocks go round a ring in batches of messages; each buffer is cleared as soon as it was sent."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
keys, values = torch.full((4,), float(rank)), torch.full((2, 2), float(rank))
coming = [torch.empty_like(keys), torch.empty_like(values)]
for _ in range(size):
    batch = []
    for block, room in zip((keys, values), coming, strict=True):
        batch += [
            dist.P2POp(dist.isend, block, (rank + 1) % size),
            dist.P2POp(dist.irecv, room, (rank - 1) % size),
        ]
    works = dist.batch_isend_irecv(batch)
    score = keys.sum() * values
    for work in works:
        work.wait()
    (keys, values), coming = coming, [keys, values]
    for room in coming:
        room.zero_()
assert float(keys[0]) == rank
dist.barrier()
dist.destroy_process_group()
