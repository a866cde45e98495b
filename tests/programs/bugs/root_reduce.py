# expect: SC105 culprits=2 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
counts = torch.ones(10, dtype=torch.int64)
destination = {0: 0, 1: 0, 2: 1}[dist.get_rank()]
dist.reduce(counts, dst=destination)  # <- bug
