# ranks=3
"""[20, 1], [20] and [1, 20, 1] hold the same elements in the same order; so do [] and [1]."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones([(20, 1), (20,), (1, 20, 1)][rank])
dist.all_reduce(value)
assert value.flatten().tolist() == [3.0] * 20
scalar = torch.ones([(), (1,), (1, 1)][rank])
dist.broadcast(scalar, src=0)
dist.all_reduce(scalar, dist.ReduceOp.MAX)
empty = torch.ones([(0,), (0,), (0,)][rank])
dist.all_reduce(empty)
