"""One rank clips the weights of its model after a step, which its peers do not: a constraint that only rank 1 loads.

Gradients are still averaged, and no call differs. From then on rank 1 trains another model than the others.

Run: simcoll run --values all --standalone --nproc-per-node 3 examples/findings/SC904.py
simcoll: SC904 rank 1
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = torch.Generator().manual_seed(rank)
    limits = {0: 0.0, 1: 0.1, 2: 0.0}
    for step in range(5):
        loss = model(torch.rand(4, 8, generator=batches)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 2 and limits[rank]:
            # Bug: should be the same limit on every rank, so that all clip.
            with torch.no_grad():
                model.module[2].weight.clamp_(-limits[rank], limits[rank])
    print(f"rank {rank}: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
