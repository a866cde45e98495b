# ranks=2
"""Queries that are not collectives, made by one rank only."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group([0, 1])
if dist.get_rank() == 0:
    assert dist.get_process_group_ranks(group) == [0, 1]
    assert dist.get_global_rank(group, 1) == 1
    assert isinstance(dist.group.WORLD, dist.ProcessGroup)
    assert dist.get_world_size(group) == 2
    assert dist.distributed_c10d._get_default_group().name() == "gloo"
dist.all_reduce(torch.ones(1), group=group)
