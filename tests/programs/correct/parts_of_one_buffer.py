# ranks=3
"""Calls in flight on disjoint parts of one buffer, on one source for many, and writes to parts that nobody uses."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
flat = torch.zeros(size * 8)
parts = list(flat.chunk(size))
works = []
for number, part in enumerate(parts):
    part.fill_(number)  # the parts before are in flight
    works.append(dist.all_reduce(part, async_op=True))
for work in works:
    work.wait()
assert flat.view(size, 8)[:, 0].tolist() == [size * number for number in range(size)]

shared = torch.full((4,), float(rank))
inbox = torch.empty(size, 4)
others = [peer for peer in range(size) if peer != rank]
requests = [dist.isend(shared, dst=peer) for peer in others]
requests += [dist.irecv(inbox[peer], src=peer) for peer in others]
for request in requests:
    request.wait()
shared += 1
assert all(inbox[peer].eq(peer).all() for peer in others)

gathered = torch.empty(size * 2)
mine = gathered[rank * 2 : rank * 2 + 2].fill_(rank)
work = dist.all_gather_into_tensor(gathered, mine, async_op=True)
work.wait()
sent = torch.ones(3)
group = dist.new_group(range(size))
first = dist.broadcast(sent if rank == 0 else torch.empty(3), src=0, async_op=True)
second = dist.broadcast(sent if rank == 0 else torch.empty(3), src=0, group=group, async_op=True)
first.wait()
second.wait()
sent.zero_()
dist.destroy_process_group()
