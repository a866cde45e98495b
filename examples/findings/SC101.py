"""Validation where one rank has no batches: it waits in a barrier, the others add up their losses.

Each side waits for messages that the other never sends. A rank without data has to add zeros to the same all_reduce.

Run: simcoll run --standalone --nproc-per-node 4 examples/findings/SC101.py
simcoll: SC101 rank 3
"""

import torch
import torch.distributed as dist
from torch import nn

BATCHES = 3  # of 16 samples each: one rank gets none


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    batches = [torch.randn(16, 8) for _ in range(BATCHES)][dist.get_rank() :: dist.get_world_size()]
    loss = validate(model, batches)
    if dist.get_rank() == 0:
        print(f"validation loss {loss:.4f}")
    dist.destroy_process_group()


def validate(model: nn.Module, batches: list[torch.Tensor]) -> float:
    if not batches:
        # Bug: should be the all_reduce below, of zeros.
        dist.barrier()
        return 0.0
    losses = torch.stack([model(batch).square().mean().detach() for batch in batches])
    total = torch.tensor([float(losses.sum()), float(len(losses))])
    dist.all_reduce(total)
    return float(total[0] / total[1])


if __name__ == "__main__":
    main()
