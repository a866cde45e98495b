# expect: SC501 culprits=0 ranks=2 stall=2
# thread: dealii/dealii#15372
"""Messages are sent from a function that returns before they are gone."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()


def publish(values: torch.Tensor) -> None:
    work = dist.isend(values, 1)  # <- bug
    if not FAULTY:
        work.wait()


if rank == 0:
    for number in range(3):
        publish(torch.full((4,), float(number)))
else:
    for _ in range(3):
        dist.recv(torch.empty(4), 0)
dist.barrier()
dist.destroy_process_group()
