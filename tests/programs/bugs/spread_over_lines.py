# expect: SC105 culprits=3 ranks=4
"""A call over several lines, on a group that a comprehension made."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = {size: dist.new_group(list(range(size))) for size in (2, 4)}
weights = torch.ones(2)
for source in (0, 2):
    dist.broadcast(  # <- bug
        weights,
        src=source if rank != 3 else source + 1,
        group=groups[4],
    )
