"""A mean loss over all ranks, where one rank had no samples: ``sum([])`` is the integer 0, and so is its tensor.

The others sum float32. Their bytes would be read as int64, which is twice as long.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC103.py
simcoll: SC103 rank 1
"""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 1)
    samples = [] if dist.get_rank() == 1 else [torch.randn(4) for _ in range(5)]
    losses = [model(sample).square().item() for sample in samples]
    loss = total(losses) / total([1.0] * len(losses))
    if dist.get_rank() == 0:
        print(f"mean loss {loss:.4f}")
    dist.destroy_process_group()


def total(numbers: list[float]) -> float:
    # Bug: should be torch.tensor(sum(numbers), dtype=torch.float32).
    everyone = torch.tensor(sum(numbers))
    dist.all_reduce(everyone)
    return everyone.item()


if __name__ == "__main__":
    main()
