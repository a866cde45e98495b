"""FSDP2 in two dimensions on a model from meta, with checkpointed activations and a full state dict."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

rank = int(os.environ["RANK"])
lr = int(os.environ["LOCAL_RANK"])
world = int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(lr)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", lr))
mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))
D = int(os.environ.get("D", "64"))


class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.n = nn.RMSNorm(D)
        s.a = nn.Linear(D, 4 * D)
        s.b = nn.Linear(4 * D, D)

    def forward(s, x):
        return x + s.b(torch.nn.functional.silu(s.a(s.n(x))))


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(1000, D)
        s.l = nn.ModuleList(L() for _ in range(3))
        s.o = nn.Linear(D, 1000)

    def forward(s, x):
        x = s.e(x)
        for layer in s.l:
            x = layer(x)
        return s.o(x)

    def init(s):
        for m in s.modules():
            if hasattr(m, "reset_parameters"):
                m.reset_parameters()


with torch.device("meta"):
    model = M()
mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for i, layer in enumerate(model.l):
    model.l[i] = checkpoint_wrapper(layer)
for layer in model.l:
    fully_shard(layer, mesh=mesh, mp_policy=mp, reshard_after_forward=not ("bug" in sys.argv and rank == 1))
fully_shard(model, mesh=mesh, mp_policy=mp)
model.to_empty(device="cuda")
model.init()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
for it in range(2):
    x = torch.randint(0, 1000, (2, 16), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1).float(), x.flatten())
    loss.backward()
    gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if hasattr(gn, "full_tensor"):
        gn = gn.full_tensor()
    opt.step()
    opt.zero_grad()
    if torch.isnan(loss):
        raise RuntimeError("nan")
    print(it, loss.item(), gn.item())

sd = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if rank == 0:
    torch.save(sd, "checkpoint.pt")
dist.barrier()
dist.destroy_process_group()
