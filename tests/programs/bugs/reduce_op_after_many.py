# expect: SC104 culprits=2 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(300):
    statistic = torch.ones(4)
    op = dist.ReduceOp.MAX if step == 250 and dist.get_rank() == 2 else dist.ReduceOp.SUM
    dist.all_reduce(statistic, op=op)  # <- bug
