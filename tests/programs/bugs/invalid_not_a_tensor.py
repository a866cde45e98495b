# expect: SC601 culprits=1 ranks=2
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
loss = 0.5 if dist.get_rank() == 1 else torch.tensor(0.5)
dist.all_reduce(loss)  # <- bug
