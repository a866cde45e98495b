"""A data set that does not divide evenly: one rank has one batch less, and ends while the others continue.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC702.py
simcoll: SC702 rank 2
"""

import torch
import torch.distributed as dist
from torch import nn

SAMPLES, BATCH = 112, 8  # 14 batches for 3 ranks


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(4, 1)
    batches = torch.randn(SAMPLES, 4).split(BATCH)
    train(model, list(batches[dist.get_rank() :: dist.get_world_size()]))


def train(model: nn.Linear, batches: list[torch.Tensor]) -> None:
    # Bug: should be as many on each rank, as a sampler with drop_last gives them.
    for batch in batches:
        model(batch).square().mean().backward()
        assert model.weight.grad is not None
        dist.all_reduce(model.weight.grad)


if __name__ == "__main__":
    main()
