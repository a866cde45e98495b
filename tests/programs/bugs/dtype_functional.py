# expect: SC103 culprits=2 ranks=4
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
rank = dist.get_rank()
logits = torch.randn(3, 4)
scale = (lambda x: x.double()) if rank == 2 else (lambda x: x * 2)
reduced = funcol.all_reduce(scale(logits), "sum", dist.group.WORLD)  # <- bug
print(reduced.sum())
