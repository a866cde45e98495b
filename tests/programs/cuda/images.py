"""Image classification as torchvision trains it: workers, synchronised batch statistics, a scaler."""

import argparse
import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class DS(Dataset):
    def __len__(s):
        return 40

    def __getitem__(s, i):
        return torch.from_numpy(np.random.rand(3, 16, 16).astype("float32")), i % 10


def main():
    use_cuda = torch.cuda.is_available()
    assert use_cuda, "needs CUDA"
    args = argparse.Namespace(rank=int(os.environ["RANK"]), gpu=int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(args.gpu)
    dist.init_process_group(backend="nccl" if use_cuda else "gloo", init_method="env://")
    dist.barrier(device_ids=[args.gpu])
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(False)
    device = torch.device("cuda", args.gpu)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).to(device)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    m0 = model
    model = DistributedDataParallel(model, device_ids=[args.gpu], output_device=args.gpu)
    crit = nn.CrossEntropyLoss().to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    sch = torch.optim.lr_scheduler.SequentialLR(
        opt, [torch.optim.lr_scheduler.LinearLR(opt), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)], [1]
    )
    scaler = torch.amp.GradScaler("cuda")
    ds = DS()
    samp = DistributedSampler(ds, shuffle=True)
    dl = DataLoader(ds, batch_size=4, sampler=samp, num_workers=1, pin_memory=True, persistent_workers=True)
    best = 0.0
    for ep in range(2):
        samp.set_epoch(ep)
        model.train()
        t = torch.cuda.Event(enable_timing=True)
        t.record()
        for x, y in dl:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(x)
                loss = crit(out, y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            acc = (out.argmax(1) == y).float().mean()
            s = torch.stack([loss.detach(), acc])
            dist.all_reduce(s, op=dist.ReduceOp.AVG)
            if not np.isfinite(s[0].item()):
                sys.exit(1)
        sch.step()
        model.eval()
        c = torch.zeros(2, device=device)
        with torch.inference_mode():
            for x, y in dl:
                o = model(x.cuda(non_blocking=True))
                _, pred = o.topk(5, 1)
                c[0] += (pred.t().eq(y.cuda().view(1, -1))).sum()
                c[1] += y.numel()
        dist.all_reduce(c)
        if "bug" in sys.argv and args.rank == 1 and ep == 1:
            c = c.double()
        dist.all_reduce(c)
        if (c[0] / c[1]).item() > best:
            best = (c[0] / c[1]).item()
        if args.rank == 0:
            torch.save(
                {
                    "m": m0.state_dict(),
                    "o": opt.state_dict(),
                    "s": scaler.state_dict(),
                    "rng": torch.get_rng_state(),
                    "crng": torch.cuda.get_rng_state(),
                },
                "checkpoint.pt",
            )
        dist.barrier()
        ck = torch.load("checkpoint.pt", map_location=f"cuda:{args.gpu}")
        m0.load_state_dict(ck["m"])
        opt.load_state_dict(ck["o"])
    print("best", best)
    dist.destroy_process_group()


main()
