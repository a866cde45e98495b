# ranks=3
"""Sizes first, padding to the longest, then the data: the common idiom for uneven all_gather."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine = torch.arange(float(rank * 2))
sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
dist.all_gather(sizes, torch.tensor([mine.numel()]))
longest = int(max(sizes))
padded = torch.zeros(longest)
padded[: mine.numel()] = mine
parts = [torch.empty(longest) for _ in range(world)]
dist.all_gather(parts, padded)
lengths = [part[: int(size)].numel() for part, size in zip(parts, sizes, strict=True)]
assert lengths == [0, 2, 4]
