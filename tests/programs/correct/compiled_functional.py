# ranks=2
"""torch.compile around functional collectives (backend aot_eager: no compiler of C++ is needed)."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
world = dist.group.WORLD


@torch.compile(backend="aot_eager", fullgraph=True)
def step(x):
    total = funcol.all_reduce(x * 2, "sum", world)
    parts = funcol.all_gather_tensor(x, 0, world)
    mine = funcol.reduce_scatter_tensor(parts, "sum", 0, world)
    return total + mine


for _ in range(3):
    result = step(torch.ones(4))
    assert result.tolist() == [6.0] * 4
