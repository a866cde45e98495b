"""Weights of several runs are averaged, and one rank has loaded a file that stores them as [inputs, outputs].

The number of elements is the same, so the backend adds them in memory order: numbers that do not
belong together.

Run: simcoll run --standalone --nproc-per-node 4 examples/findings/SC109.py
simcoll: SC109 rank 2
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    weights = {name: loaded(dist.get_rank()) for name in ("up", "down")}
    for weight in weights.values():
        average(weight)
    dist.destroy_process_group()


def loaded(run: int) -> torch.Tensor:
    weight = torch.randn(20, 10)
    return weight.t().contiguous() if run == 2 else weight


def average(weight: torch.Tensor) -> None:
    # Bug: the weights of run 2 should be transposed when they are loaded.
    dist.all_reduce(weight)
    weight /= dist.get_world_size()


if __name__ == "__main__":
    main()
