# expect: SC109 culprits=3 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
kernel = torch.ones(20, 10) if dist.get_rank() != 3 else torch.ones(10, 20)
dist.all_reduce(kernel)  # <- bug
