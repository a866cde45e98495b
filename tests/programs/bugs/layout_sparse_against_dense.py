# expect: SC108 culprits=2 ranks=3
"""One rank's embedding has sparse gradients; today the job hangs."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
embedding = torch.nn.Embedding(5, 2, sparse=dist.get_rank() == 2)
embedding(torch.tensor([1, 3])).sum().backward()
gradient = embedding.weight.grad
dist.all_reduce(gradient)  # <- bug
