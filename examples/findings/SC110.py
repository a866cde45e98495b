"""Gradients are averaged in one coalesced call, in the order of a dict that one rank has filled in another order.

That rank resumed from a checkpoint, in which the head comes first. Each gradient is added to one of another parameter.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC110.py
simcoll: SC110 rank 0
"""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    layers = {"body": nn.Linear(8, 4), "head": nn.Linear(4, 1)}
    if dist.get_rank() == 0:
        layers = {name: layers[name] for name in ("head", "body")}  # as the checkpoint has them
    batch = torch.randn(16, 8)
    layers["head"](layers["body"](batch).relu()).mean().backward()
    average(layers)
    dist.destroy_process_group()


def average(layers: dict[str, nn.Linear]) -> None:
    # Bug: should go by sorted(layers).
    gradients = [layer.weight.grad for layer in layers.values() if layer.weight.grad is not None]
    dist.all_reduce_coalesced(gradients)
    for gradient in gradients:
        gradient /= dist.get_world_size()


if __name__ == "__main__":
    main()
