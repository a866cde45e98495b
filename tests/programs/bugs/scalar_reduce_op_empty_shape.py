# expect: SC104 culprits=2 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
stop = torch.tensor(False)
found = torch.zeros((), dtype=torch.int64)
dist.all_reduce(found)
reductions = [dist.ReduceOp.MAX, dist.ReduceOp.MAX, dist.ReduceOp.MIN]
dist.all_reduce(found, reductions[dist.get_rank()])  # <- bug
