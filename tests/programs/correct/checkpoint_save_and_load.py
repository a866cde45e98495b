# ranks=2
"""torch.distributed.checkpoint with a sharded tensor and plain state."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder)
table = torch.arange(12.0).reshape(6, 2)
checkpoint.save({"table": distribute_tensor(table, mesh, [Shard(0)]), "step": 3}, checkpoint_id=folder[0])
state = {"table": zeros(6, 2, device_mesh=mesh, placements=[Shard(0)]), "step": 0}
checkpoint.load(state, checkpoint_id=folder[0])
assert torch.equal(state["table"].full_tensor(), table)
assert state["step"] == 3
