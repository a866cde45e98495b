# expect: SC102 culprits= ranks=2
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
vocabulary = torch.arange(100 + dist.get_rank())
dist.broadcast(vocabulary, src=0)  # <- bug
