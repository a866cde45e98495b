"""A pipeline of stages under 1F1B that tell each other their shapes."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])
dev = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(dev)
dist.init_process_group("nccl", device_id=dev)
D = 32
m = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)).to(dev)
st = PipelineStage(m, rank, world, dev)
sch = Schedule1F1B(
    st, n_microbatches=world if not ("bug" in sys.argv and rank == 1) else world // 2, loss_fn=nn.functional.mse_loss
)
o = torch.optim.SGD(m.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randn(world * 2, D, device=dev)
    y = torch.randn(world * 2, D, device=dev)
    if rank == 0:
        sch.step(x)
    elif rank == world - 1:
        ls = []
        sch.step(target=y, losses=ls)
        print(torch.stack(ls).mean().item())
    else:
        sch.step()
    o.step()
    o.zero_grad()
dist.destroy_process_group()
