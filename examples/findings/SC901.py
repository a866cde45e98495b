"""The loss of a batch is its mean over the samples that have a label, and one rank gets a batch without any.

That is 0 / 0. The sum of the gradients makes it NaN on every rank, and the weights with it: no rank's loss shows where
it began.

Run: simcoll run --values all --standalone --nproc-per-node 3 examples/findings/SC901.py
simcoll: SC901 rank 1
"""

import torch
import torch.distributed as dist
from torch import nn

STEPS = 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        loss = mean_loss(model(torch.randn(16, 8)), labelled(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    dist.destroy_process_group()


def labelled(step: int) -> torch.Tensor:
    none = dist.get_rank() == 1 and step == 2
    return torch.zeros(16, 1) if none else torch.ones(16, 1)


def mean_loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # Bug: should divide by labels.sum().clamp(min=1).
    return (output.square() * labels).sum() / labels.sum()


if __name__ == "__main__":
    main()
