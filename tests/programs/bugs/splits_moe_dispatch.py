# expect: SC106 culprits=2 ranks=4
"""Rank 2 drops a token for each expert but announces the old counts."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
counts = torch.tensor([[1, 2, 0, 3], [2, 2, 2, 2], [4, 1, 1, 2], [3, 0, 5, 1]])
sends = counts[rank].tolist()
receives = counts[:, rank].tolist()
if rank == 2:
    sends = [max(count - 1, 0) for count in sends]
tokens = torch.ones(sum(sends), 4)
routed = torch.empty(sum(receives), 4)
dist.all_to_all_single(routed, tokens, receives, sends)  # <- bug
