# expect: SC104 culprits= ranks=4
"""new_subgroups makes pairs; the pair of ranks 2 and 3 disagrees."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine, _ = dist.new_subgroups(group_size=2)
best = torch.rand(3)
op = dist.ReduceOp.MAX if dist.get_rank() != 3 else dist.ReduceOp.MIN
dist.all_reduce(best, op=op, group=mine)  # <- bug
