"""A layer of experts, whose tokens go by uneven all-to-all, there and back."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn

rank = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])
lr = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(lr)
dist.init_process_group("nccl")
dev = torch.device("cuda")
D, Tn = 32, 64


class A2A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, o, i):
        ctx.o, ctx.i = o, i
        y = x.new_empty(sum(o), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), o, i)
        return y

    @staticmethod
    def backward(ctx, g):
        y = g.new_empty(sum(ctx.i), g.shape[1])
        dist.all_to_all_single(y, g.contiguous(), ctx.i, ctx.o)
        return y, None, None


torch.manual_seed(rank)
router = nn.Linear(D, world).cuda()
expert = nn.Linear(D, D).cuda()
o = torch.optim.AdamW([*router.parameters(), *expert.parameters()])
for _ in range(2):
    x = torch.randn(Tn, D, device=dev)
    p = router(x).softmax(-1)
    w, e = p.topk(1, dim=-1)
    e = e.squeeze(-1)
    order = e.argsort()
    cnt = torch.bincount(e, minlength=world)
    other = torch.empty_like(cnt)
    dist.all_to_all_single(other, cnt)
    i, r = cnt.tolist(), other.tolist()
    if "bug" in sys.argv and rank == 1:
        i = [len(order) - world + 1] + [1] * (world - 1)
        r = r[::-1]
        dist.all_to_all_single(torch.empty(sum(r), D // 2, device=dev), torch.ones(sum(i), D // 2, device=dev), r, i)
    h = A2A.apply(x[order], r, i)
    h = expert(h) if h.shape[0] > 0 else h
    y = A2A.apply(h, i, r)
    out = torch.zeros_like(x)
    out[order] = y
    loss = (out * w).square().mean()
    loss.backward()
    for q in expert.parameters():
        if q.grad is None:
            q.grad = torch.zeros_like(q)
    for q in router.parameters():
        dist.all_reduce(q.grad)
        q.grad /= world
    n = max(r)
    cap = torch.tensor([n], device=dev)
    dist.all_reduce(cap, op=dist.ReduceOp.MAX)
    buf = torch.zeros(int(cap.item()), D, device=dev)
    dist.all_reduce(buf)
    o.step()
    o.zero_grad()
    print(loss.item())
dist.destroy_process_group()
