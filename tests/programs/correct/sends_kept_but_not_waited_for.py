# ranks=3
"""A pipeline keeps the Works of its sends until its step ends, and waits for no send: its receives imply their end."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
first, last = rank == 0, rank == size - 1


def step(micro_batches: int) -> None:
    kept = []
    for number in range(micro_batches):
        batch = torch.full((4,), float(number))
        if not first:
            dist.recv(batch, rank - 1)
        if not last:
            kept.append(dist.isend(batch, rank + 1))
    for _ in range(micro_batches):
        gradient = torch.ones(4)
        if not last:
            dist.recv(gradient, rank + 1)
        if not first:
            dist.send(gradient, rank - 1)


for _ in range(3):
    step(4)
