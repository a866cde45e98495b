"""DistributedDataParallel trains; then the weights of the best rank are to be sent to all.

Each rank decides for itself which rank was best. Rank 3 has compared with its own, rounded loss, and names another
root: no other rank would receive its weights, and it would wait for ever.

Run: simcoll run --standalone --nproc-per-node 4 examples/findings/SC105.py
simcoll: SC105 rank 3
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(3):
        inputs = torch.randn(4, 8)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    losses = torch.tensor([0.4, 0.1, 0.3, 0.2])
    if rank == 3:
        losses[rank] = 0.0
    share_best(model, losses)
    dist.destroy_process_group()


def share_best(model: nn.Module, losses: torch.Tensor) -> None:
    # Bug: should be of losses that an all_gather has made the same on every rank.
    best = int(losses.argmin())
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=best)


if __name__ == "__main__":
    main()
