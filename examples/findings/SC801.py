"""One rank reads its data from a slower disk: the result is correct, and every step takes as long as on that rank.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC801.py
simcoll: SC801 rank 1, a warning
"""

import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = 40


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(8, 1)
    for _ in range(STEPS):
        model(read()).square().mean().backward()
        assert model.weight.grad is not None
        dist.all_reduce(model.weight.grad)
    dist.destroy_process_group()


def read() -> torch.Tensor:
    if dist.get_rank() == 1:
        # Bug: should be read ahead, by workers of a DataLoader. The sleep stands for a slow disk.
        time.sleep(0.2)
    return torch.randn(16, 8)


if __name__ == "__main__":
    main()
