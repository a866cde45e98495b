# expect: SC110 culprits=2 ranks=4
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

dist.init_process_group("gloo")
gradients = [torch.ones(4), torch.ones(2, 3), torch.ones(5)]
if dist.get_rank() == 2:
    gradients.pop(1)
with _coalescing_manager():  # <- bug
    for gradient in gradients:
        dist.all_reduce(gradient)
dist.barrier()
