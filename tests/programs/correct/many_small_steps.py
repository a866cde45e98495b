# ranks=2
"""Long enough to fill caches: shapes that change all the time, five kinds of collectives."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(120):
    size = 1 + (step * 7) % 13
    dist.all_reduce(torch.ones(size), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][step % 2])
    dist.broadcast(torch.ones(size, 2), src=step % 2)
    dist.all_gather([torch.empty(size), torch.empty(size)], torch.ones(size))
    out = torch.empty(size)
    dist.reduce_scatter(out, [torch.ones(size), torch.ones(size)])
    dist.scatter(out, [torch.ones(size)] * 2 if rank == step % 2 else None, src=step % 2)
