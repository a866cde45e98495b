# ranks=2
"""A backend for each device type in one group."""

import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo")
assert dist.get_backend_config() == "cpu:gloo"
group = dist.new_group(backend="cpu:gloo")
value = torch.ones(3)
dist.all_reduce(value)
dist.all_reduce(value, group=group)
assert value.tolist() == [4.0] * 3
