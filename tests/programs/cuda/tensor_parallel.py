"""Tensor parallel blocks with sequence parallel norms, under FSDP2."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

world = int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
D = 64


class B(nn.Module):
    def __init__(s):
        super().__init__()
        s.n = nn.LayerNorm(D)
        s.a = nn.Linear(D, 4 * D)
        s.b = nn.Linear(4 * D, D)

    def forward(s, x):
        return x + s.b(torch.relu(s.a(s.n(x))))


m = nn.Sequential(B(), B()).cuda()
for b in m:
    parallelize_module(
        b,
        mesh["tp"],
        {
            "n": SequenceParallel(),
            "a": ColwiseParallel(input_layouts=Shard(1)),
            "b": RowwiseParallel(output_layouts=Shard(1)),
        },
    )
if "plain" not in sys.argv:
    for b in m:
        fully_shard(b, mesh=mesh["dp"])
    fully_shard(m, mesh=mesh["dp"])
o = torch.optim.Adam(m.parameters(), fused=False)
for it in range(2):
    torch.manual_seed(it)
    x = torch.randn(4, 8, D, device="cuda")
    y = m(x)
    loss = y.float().square().mean()
    if hasattr(loss, "full_tensor"):
        loss = loss.full_tensor()
    loss.backward()
    if "bug" in sys.argv and dist.get_rank() == 1:
        dist.all_reduce(torch.ones(3, device="cuda"), group=mesh["tp"].get_group())
    o.step()
    o.zero_grad()
    print(loss.item())
dist.destroy_process_group()
