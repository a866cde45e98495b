# ranks=3
"""Large and empty messages, many outstanding, tags in another order, any source beside a stated one, in subgroups."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
pair = dist.new_group([1, 2])
dist.barrier()

if rank == 0:
    dist.send(torch.arange(3_000_000.0), dst=1)
    dist.send(torch.empty(0), dst=1)
    works = [dist.isend(torch.full((size,), float(size)), dst=1, tag=size) for size in range(1, 65)]
    for work in works:
        work.wait()
elif rank == 1:
    large = torch.empty(3_000_000)
    dist.recv(large, src=0)
    assert large[-1].item() == 2_999_999.0
    dist.recv(torch.empty(0), src=0)
    buffers = {size: torch.empty(size) for size in range(1, 65)}
    works = [dist.irecv(buffers[size], src=0, tag=size) for size in reversed(range(1, 65))]
    for work in works:
        work.wait()
    assert all((buffer == size).all() for size, buffer in buffers.items())

# Any source and a stated one, of different sizes, under different tags.
if rank == 0:
    first, second = torch.empty(2), torch.empty(5)
    sender = dist.recv(first, tag=1)
    dist.recv(second, src=3 - sender, tag=2)
    dist.recv(second, src=sender, tag=2)
    dist.recv(first, src=3 - sender, tag=1)
else:
    works = [dist.isend(torch.ones(2), dst=0, tag=1), dist.isend(torch.ones(5), dst=0, tag=2)]
    for work in works:
        work.wait()

# In a subgroup, both ways at once; the same tag as in the world.
if rank:
    incoming = torch.empty(3)
    works = [dist.isend(torch.full((3,), float(rank)), dst=3 - rank, group=pair)]
    works.append(dist.irecv(incoming, src=3 - rank, group=pair))
    for work in works:
        work.wait()
    assert incoming.tolist() == [3.0 - rank] * 3

# Raw bytes into numbers, and a receive that was open when the program ended.
if rank == 0:
    dist.send(torch.ones(2).view(torch.uint8), dst=2)
elif rank == 2:
    numbers = torch.empty(2)
    dist.recv(numbers, src=0)
    assert numbers.tolist() == [1.0, 1.0]
    stop = dist.irecv(torch.empty(1), src=0, tag=99)
dist.barrier()
