"""Two pipeline stages; the last micro-batch is smaller, and only the first stage knows.

The second stage receives into a buffer of the usual size: a part keeps the previous batch. Other sizes abort Gloo.

Run: simcoll run --standalone --nproc-per-node 2 examples/findings/SC301.py
simcoll: SC301
"""

import torch
import torch.distributed as dist
from torch import nn

BATCH, HIDDEN = 8, 16


def main() -> None:
    dist.init_process_group("gloo")
    samples = torch.randn(20, 4)
    micro_batches = samples.split(BATCH)  # of 8, 8 and 4
    stage = nn.Linear(4, HIDDEN) if dist.get_rank() == 0 else nn.Linear(HIDDEN, 1)
    for micro_batch in micro_batches:
        if dist.get_rank() == 0:
            dist.send(stage(micro_batch).detach(), dst=1)
        else:
            stage(received())
    dist.destroy_process_group()


def received() -> torch.Tensor:
    # Bug: should be as long as the micro-batch, a number to be sent first.
    activations = torch.empty(BATCH, HIDDEN)
    dist.recv(activations, src=0)
    return activations


if __name__ == "__main__":
    main()
