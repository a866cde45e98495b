# expect: SC601 culprits=0 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.gather(torch.ones(2), dst=0)  # <- bug
