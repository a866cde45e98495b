# expect: SC104 culprits=3 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
shard = torch.empty(2)
chunks = list(torch.ones(4, 2))
op = dist.ReduceOp.MIN if dist.get_rank() == 3 else dist.ReduceOp.SUM
dist.reduce_scatter(shard, chunks, op=op)  # <- bug
