# ranks=2
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
batch = torch.randn(3, 8)
expected = model(batch)
mesh = init_device_mesh("cpu", (2,))
parallel = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
result = parallel(batch)
assert torch.allclose(result, expected, atol=1e-5)
result.sum().backward()
