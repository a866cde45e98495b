# expect: SC104 culprits=0 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
latest = torch.tensor([3.0, 4.0])
if dist.get_rank() == 0:
    dist.reduce(latest, 0, dist.ReduceOp.SUM)  # <- bug
else:
    dist.reduce(latest, 0, dist.ReduceOp.MAX)
