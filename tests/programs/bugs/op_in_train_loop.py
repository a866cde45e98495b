# expect: SC101 culprits=1 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
weights = torch.ones(64)
for step in range(5):
    gradient = torch.full((64,), float(step))
    if rank == 1 and step == 3:
        dist.broadcast(gradient, src=0)  # <- bug
    else:
        dist.all_reduce(gradient)
    weights -= 0.1 * gradient
dist.destroy_process_group()
