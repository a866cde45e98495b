# expect: SC101 culprits=1 ranks=3 stall=2
# thread: Lightning-AI/pytorch-lightning#6430
"""One rank's exception is caught to save a checkpoint, whose name is broadcast; the others are in the next step."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]


def save_checkpoint() -> None:
    name = ["last.ckpt"]
    dist.broadcast_object_list(name, src=0)  # <- bug


def step(batch: list[float]) -> None:
    mean = torch.tensor([sum(batch) / len(batch)])
    dist.all_reduce(mean)


dist.init_process_group("gloo")
rank = dist.get_rank()
batches = [[1.0, 2.0], [3.0], [] if FAULTY and rank == 1 else [4.0], [5.0]]
try:
    for batch in batches:
        step(batch)
except ZeroDivisionError:
    save_checkpoint()
    raise
dist.destroy_process_group()
