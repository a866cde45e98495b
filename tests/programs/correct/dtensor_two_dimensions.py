# ranks=4
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
whole = torch.arange(35.0).reshape(5, 7)
for placements in ([Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(1), Shard(1)]):
    tensor = distribute_tensor(whole, mesh, placements)
    assert torch.equal(tensor.full_tensor(), whole)
    moved = tensor.redistribute(mesh, [Shard(1), Replicate()])
    assert torch.equal(moved.full_tensor(), whole)
product = distribute_tensor(whole, mesh, [Shard(0), Shard(1)]) @ distribute_tensor(
    whole.T, mesh, [Replicate(), Shard(0)]
)
assert torch.allclose(product.full_tensor(), whole @ whole.T)
assert isinstance(Partial(), Partial)
