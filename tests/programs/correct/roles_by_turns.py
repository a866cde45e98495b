# ranks=3
"""The ranks take turns: one works, the others bring zeros, each from its own line; all calls look alike."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.zeros(4)
for turn in range(4 * world):
    piece = torch.zeros(4)
    if turn % world == rank:
        piece += turn
        dist.all_reduce(piece)
    else:
        dist.all_reduce(piece)
    if (turn + rank) % 2:
        dist.all_reduce(total)
    else:
        dist.all_reduce(total)
