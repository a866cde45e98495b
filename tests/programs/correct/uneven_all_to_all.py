# ranks=4
"""Splits of every size, zero included, and a rank that sends nothing at all."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
counts = torch.tensor([[0, 2, 1, 4], [3, 0, 0, 1], [0, 0, 0, 0], [1, 1, 5, 0]])
send, receive = counts[rank].tolist(), counts[:, rank].tolist()
tokens = torch.full((sum(send), 3), float(rank))
routed = torch.empty(sum(receive), 3)
dist.all_to_all_single(routed, tokens, receive, send)
expected = [source for source, count in enumerate(receive) for _ in range(count)]
assert routed[:, 0].tolist() == expected
dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3), [0] * 4, [0] * 4)
