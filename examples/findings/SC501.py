"""Losses are summed by an asynchronous call, and read for the log before the program has waited for it.

The log shows this rank's own loss, or the sum, or something in between.

Run: simcoll run --standalone --nproc-per-node 2 examples/findings/SC501.py
simcoll: SC501, a warning
"""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(8, 1)
    history: list[torch.Tensor] = []
    for batch in torch.randn(3, 16, 8):
        loss = model(batch).square().mean()
        loss.backward()
        log(history, loss.detach())
    dist.barrier()
    dist.destroy_process_group()


def log(history: list[torch.Tensor], loss: torch.Tensor) -> float:
    history.append(loss)
    # Bug: should keep the work that is returned, and wait() for it before the sum is read.
    dist.all_reduce(loss, async_op=True)
    return loss.item() / dist.get_world_size()


if __name__ == "__main__":
    main()
