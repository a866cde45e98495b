"""A training loop that looks right, runs to the end without simcoll, and reports a wrong loss.

Three ranks add up their metrics; rank 2 keeps the largest. Gloo does not notice, and every rank gets a number: a mean
loss, over fewer samples than the 32 that there were.

Run: simcoll run --standalone --nproc-per-node 4 examples/planted_bug.py
simcoll: SC104 rank 2
"""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        inputs = torch.randn(8, 16, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world_size)
        optimizer.step()
        if step % 2 == 1:
            log(step, loss.detach(), world_size)
    dist.destroy_process_group()


def average_gradients(model: nn.Module, world_size: int) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


def log(step: int, loss: torch.Tensor, world_size: int) -> None:
    metrics = torch.tensor([loss.item(), 8.0])
    if dist.get_rank() == 2:
        dist.all_reduce(metrics, op=dist.ReduceOp.MAX)  # the planted bug
    else:
        dist.all_reduce(metrics)
    if dist.get_rank() == 0:
        print(f"step {step}: mean loss {metrics[0].item() / world_size:.4f} over {int(metrics[1])} samples")


if __name__ == "__main__":
    main()
