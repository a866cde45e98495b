# ranks=4
"""Overlapping groups in an order of their own on each rank, and a group of one."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
row, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
column, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
alone = [dist.new_group([member]) for member in range(4)][rank]
value = torch.tensor(float(rank))
dist.all_reduce(value, group=row)
dist.all_reduce(value, group=column)
dist.all_reduce(value, group=alone)
dist.barrier(group=alone)
assert value.item() == 6.0
