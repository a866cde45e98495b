"""Training on GPUs, where one rank adds up its loss on the CPU: its call enters Gloo, the others' enter NCCL.

Each waits for the other for ever. Without a GPU a dry run finds it, because it pretends that each rank has one.

Run: simcoll preflight --world-size 4 examples/findings/SC107.py
simcoll: SC107 rank 2
"""

import os

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    model = nn.Linear(8, 1).to(device)
    for batch in torch.randn(3, 16, 8, device=device):
        loss = model(batch).square().mean()
        loss.backward()
    average(loss.detach())
    dist.destroy_process_group()


def average(loss: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 2:
        # Bug: should be after the all_reduce.
        loss = loss.cpu()
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


if __name__ == "__main__":
    main()
