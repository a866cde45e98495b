"""A small language model under DDP, as nanoGPT trains it: compiled, in mixed precision, saved by rank 0."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

backend = "nccl"
ddp = int(os.environ.get("RANK", -1)) != -1
dist.init_process_group(backend=backend)
rank = int(os.environ["RANK"])
local_rank = int(os.environ["LOCAL_RANK"])
world = int(os.environ["WORLD_SIZE"])
device = f"cuda:{local_rank}"
torch.cuda.set_device(device)
master = rank == 0
torch.manual_seed(1337 + rank)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)
C, T, V, H = 64, 32, 128, 4


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1 = nn.LayerNorm(C)
        s.l2 = nn.LayerNorm(C)
        s.qkv = nn.Linear(C, 3 * C)
        s.p = nn.Linear(C, C)
        s.m = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

    def forward(s, x):
        B = x.size(0)
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in s.qkv(s.l1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(B, T, C)
        x = x + s.p(y)
        return x + s.m(s.l2(x))


class GPT(nn.Module):
    def __init__(s):
        super().__init__()
        s.wte = nn.Embedding(V, C)
        s.wpe = nn.Embedding(T, C)
        s.h = nn.ModuleList([Block() for _ in range(2)])
        s.head = nn.Linear(C, V, bias=False)
        s.wte.weight = s.head.weight
        s.apply(s.init)

    def init(s, m):
        if isinstance(m, nn.Linear):
            torch.nn.init.normal_(m.weight, std=0.02)
            if m.bias is not None:
                torch.nn.init.zeros_(m.bias)

    def forward(s, idx, t):
        x = s.wte(idx) + s.wpe(torch.arange(T, device=idx.device))
        for b in s.h:
            x = b(x)
        logits = s.head(x)
        return logits, F.cross_entropy(logits.view(-1, V), t.view(-1))


model = GPT()
model.to(device)
scaler = torch.cuda.amp.GradScaler(enabled=True)
fused = "fused"
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
model = torch.compile(model)
model = DDP(model, device_ids=[local_rank])
model.register_comm_hook(None, bf16_compress_hook)


def get_batch():
    x = torch.randint(0, V, (4, T))
    y = torch.randint(0, V, (4, T))
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


@torch.no_grad()
def estimate():
    model.eval()
    ls = torch.zeros(3)
    for k in range(3):
        with ctx:
            _, found = model(*get_batch())
        ls[k] = found.item()
    model.train()
    return ls.mean()


best = 1e9
raw = model.module
t0 = time.time()
for it in range(3):
    if it % 2 == 0 and master:
        validation = estimate()
        print(f"val {validation:.4f}")
        if validation < best:
            best = validation
            torch.save(
                {"model": raw.state_dict(), "opt": opt.state_dict(), "it": it},
                "checkpoint.pt",
            )
    for micro in range(2):
        model.require_backward_grad_sync = micro == 1
        with ctx:
            _, loss = model(*get_batch())
            loss = loss / 2
        scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if "bug" in sys.argv and rank == 1 and it == 1:
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.SUM)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    lossf = loss.item()
    if master:
        print(f"iter {it} loss {lossf:.4f} mem {torch.cuda.max_memory_allocated() / 1e9}")
dist.barrier()
dist.destroy_process_group()
