# ranks=3
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.distributed_c10d import _coalescing_manager

dist.init_process_group("gloo")
tensors = [torch.ones(3), torch.ones(2, 2), torch.ones(())]
with _coalescing_manager():
    for tensor in tensors:
        dist.all_reduce(tensor)
with _coalescing_manager(async_ops=True) as manager:
    for tensor in tensors:
        dist.all_reduce(tensor)
manager.wait()
assert all(tensor.eq(9).all() for tensor in tensors)
gathered = funcol.all_gather_into_tensor_coalesced([torch.ones(2), torch.ones(3)], dist.group.WORLD)
assert [tensor.numel() for tensor in gathered] == [6, 9]
reduced = funcol.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", dist.group.WORLD)
assert [tensor.sum().item() for tensor in reduced] == [6.0, 9.0]
