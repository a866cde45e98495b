# ranks=3
"""Rank 0 receives from any source and then by name, in ways in which no order of arrival does harm."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
message, size = torch.zeros(4), torch.zeros(1, dtype=torch.int64)


def the_rest():
    """Whoever was not first is named."""
    if rank == 0:
        first = dist.recv(message)
        for other in range(1, world):
            if other != first:
                dist.recv(message, src=other)
    else:
        dist.send(message, dst=0)


def header_and_body():
    """The body is taken from the sender of the header."""
    if rank == 0:
        for _ in range(1, world):
            who = dist.recv(size)
            dist.recv(torch.zeros(int(size)), src=who)
    else:
        dist.send(torch.tensor([rank + 3]), dst=0)
        dist.send(torch.zeros(rank + 3), dst=0)


def requests_and_results():
    """Each worker sends its result only after all requests have been answered."""
    if rank == 0:
        for _ in range(1, world):
            dist.send(message, dst=dist.recv(message))
        dist.barrier()
        for worker in range(1, world):
            dist.recv(message, src=worker)
    else:
        dist.send(message, dst=0)
        dist.recv(message, src=0)
        dist.barrier()
        dist.send(message, dst=0)


def tags():
    """Two kinds of messages have two tags."""
    if rank == 0:
        dist.recv(message, tag=7)
        dist.recv(message, src=1)
    else:
        time.sleep(0.2 * (rank == 1))
        dist.send(message, dst=0, tag=0 if rank == 1 else 7)


for part in (the_rest, header_and_body, requests_and_results, tags):
    part()
    dist.barrier()
dist.destroy_process_group()
