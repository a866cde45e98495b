# ranks=4
"""batch_isend_irecv around a ring, tags out of order, objects by send and receive."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
right, left = (rank + 1) % world, (rank - 1) % world
outgoing, incoming = torch.full((3,), float(rank)), torch.empty(3)
operations = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
if rank % 2:
    operations.reverse()
for request in dist.batch_isend_irecv(operations):
    request.wait()
assert incoming.tolist() == [float(left)] * 3

if rank == 0:
    works = [dist.isend(torch.tensor([float(tag)]), dst=1, tag=tag) for tag in (1, 2)]
    for work in works:
        work.wait()
elif rank == 1:
    second, first = torch.empty(1), torch.empty(1)
    dist.recv(second, src=0, tag=2)
    dist.recv(first, src=0, tag=1)
    assert (first.item(), second.item()) == (1.0, 2.0)
box = [{"from": rank}]
if rank == 2:
    dist.send_object_list(box, dst=3)
elif rank == 3:
    dist.recv_object_list(box, src=2)
    assert box == [{"from": 2}]
dist.barrier()
