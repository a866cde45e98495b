# ranks=2
"""Sparse tensors with another number of entries on each rank, as nn.Embedding(sparse=True) makes them."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
embedding = torch.nn.Embedding(10, 2, sparse=True)
embedding(torch.tensor([0, 3, 3] if rank == 0 else [1])).sum().backward()
gradient = embedding.weight.grad.coalesce()
dist.all_reduce(gradient)
dense = gradient.to_dense()
assert dense[:4, 0].tolist() == [1.0, 1.0, 0.0, 2.0]
