"""Losses are summed and samples are counted, and a rank that has resumed does so in the opposite order.

To the backend the two calls look alike: its loss is silently added to the others' counts.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC203.py
simcoll: SC203 rank 2, a warning
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    loss, samples = torch.tensor(0.5), torch.tensor(16.0)
    log(loss, samples, resumed=dist.get_rank() == 2)
    dist.destroy_process_group()


def add_up(loss: torch.Tensor) -> None:
    dist.all_reduce(loss)


def count(samples: torch.Tensor) -> None:
    dist.all_reduce(samples)


def log(loss: torch.Tensor, samples: torch.Tensor, *, resumed: bool) -> float:
    if resumed:
        # Bug: should be in the order below.
        count(samples)
        add_up(loss)
    else:
        add_up(loss)
        count(samples)
    return float(loss / samples)


if __name__ == "__main__":
    main()
