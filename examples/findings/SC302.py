"""Two pipeline stages; the first computes under autocast, so its activations are bfloat16.

The second stage expects float32, and would read two numbers as one.

Run: simcoll run --standalone --nproc-per-node 2 examples/findings/SC302.py
simcoll: SC302
"""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    for batch in torch.randn(3, 8, 4):
        if dist.get_rank() == 0:
            first_stage(batch)
        else:
            second_stage()
    dist.destroy_process_group()


def first_stage(batch: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        activations = nn.Linear(4, 16)(batch).detach()
    # Bug: should be activations.float(), or the other stage should receive bfloat16.
    dist.send(activations, dst=1)


def second_stage() -> None:
    activations = torch.empty(8, 16)
    dist.recv(activations, src=0)  # bug
    nn.Linear(16, 1)(activations)


if __name__ == "__main__":
    main()
