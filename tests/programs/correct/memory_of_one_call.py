# ranks=2
"""Tensors that lie in memory in unusual ways which Gloo handles: dense in any order, in place, views of one buffer."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
image = torch.full((2, 3, 4, 4), rank + 1.0).to(memory_format=torch.channels_last)
dist.all_reduce(image)
assert bool((image == 3).all())
dist.broadcast(torch.ones(4, 3).t(), 0)
dist.reduce(torch.ones(5, 4)[2:4], 0)
for odd in (torch.ones(3, 2)[:, :0], torch.ones(1, 8)[:, :1], torch.tensor(1.0), torch.ones(1).expand(1, 1)):
    dist.all_reduce(odd)
dist.all_reduce(torch.ones(4, dtype=torch.complex64))
flat = torch.zeros(4 * size)
parts = list(flat.chunk(size))
parts[rank].fill_(rank)
dist.all_gather_into_tensor(flat, parts[rank])
assert flat.tolist() == [float(part) for part in range(size) for _ in range(4)]
dist.reduce_scatter_tensor(parts[rank], flat)
dist.all_gather(parts, parts[rank])
dist.all_gather(list(torch.zeros(4, size).unbind(1)), torch.ones(8)[::2])
dist.all_gather([torch.zeros(0)] * size, torch.ones(0))
dist.all_to_all(parts, parts)
dist.reduce_scatter(parts[rank], parts)
shared = [torch.ones(4)] * size
dist.scatter(torch.zeros(4), shared if rank == 0 else None)
dist.gather(parts[0], parts if rank == 0 else None)
dist.all_to_all_single(flat[:0], flat[:0], [0] * size, [0] * size)
dist.destroy_process_group()
