# expect: SC106 culprits=1 ranks=4
"""Rank 1 expects two rows of everybody, but everybody sends one."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
out = torch.ones(5 if rank == 1 else 4, 8)
send = [1, 2, 1, 1] if rank == 1 else [1, 1, 1, 1]
receive = [2, 2, 2, 2] if rank == 1 else [1, 1, 1, 1]
incoming = torch.empty(sum(receive), 8)
dist.all_to_all_single(incoming, out, receive, send)  # <- bug
