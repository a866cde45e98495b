# expect: SC102 culprits=2 ranks=4
"""Each rank builds the table from its own file; one has another size."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (4,))
rows = 24 if dist.get_rank() == 2 else 16
table = torch.ones(rows, 8)
sharded = distribute_tensor(table, mesh, [Shard(0)])  # <- bug
