# ranks=2
"""Names that differ by a prefix, parameters that the module excludes, groups that only some belong to."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class WithExpert(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.expert = nn.Linear(4, 4 + rank)
        self._ddp_params_and_buffers_to_ignore = ["expert.weight", "expert.bias"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expert(self.shared(x)).sum()


dist.init_process_group("gloo")
rank = dist.get_rank()
plain = nn.Linear(4, 2)
model = DistributedDataParallel(Wrapped(plain) if rank == 0 else plain)
model(torch.ones(1, 4)).sum().backward()
DistributedDataParallel(WithExpert(rank))(torch.ones(1, 4)).backward()

own = dist.new_group([0])
assert dist.get_rank(own) == (0 if rank == 0 else -1)
if rank == 0:
    DistributedDataParallel(nn.Linear(2, 2), process_group=own)(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group(own)
dist.barrier()
dist.destroy_process_group()
