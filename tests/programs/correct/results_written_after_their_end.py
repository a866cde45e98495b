# ranks=2
"""Results of all kinds are written to as soon as their end is known, and their memory is used again."""

from collections.abc import Callable
from datetime import timedelta
from time import sleep

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
other = 1 - rank
whole, part, list_of_parts = torch.empty(8), torch.empty(4), [torch.empty(4) for _ in range(size)]

STARTS: tuple[Callable[[], dist.Work], ...] = (
    lambda: dist.all_reduce(part, async_op=True),
    lambda: dist.broadcast(part, src=0, async_op=True),
    lambda: dist.reduce(part, dst=1, async_op=True),
    lambda: dist.all_gather(list_of_parts, torch.ones(4), async_op=True),
    lambda: dist.all_gather_into_tensor(whole, torch.ones(4), async_op=True),
    lambda: dist.gather(torch.ones(4), list_of_parts if rank == 0 else None, async_op=True),
    lambda: dist.scatter(part, [torch.ones(4), torch.ones(4)] if rank == 0 else None, async_op=True),
    lambda: dist.reduce_scatter(part, [torch.ones(4), torch.ones(4)], async_op=True),
    lambda: dist.reduce_scatter_tensor(part, torch.ones(8), async_op=True),
    lambda: dist.all_to_all_single(whole, torch.ones(8), async_op=True),
    lambda: dist.all_to_all(list_of_parts, [torch.ones(4), torch.ones(4)], async_op=True),
)


def polled(work: dist.Work) -> None:
    while not work.is_completed():
        sleep(0)


def taken(work: dist.Work) -> None:
    while True:
        try:
            found = work.result()
        except RuntimeError:
            sleep(0)
            continue
        break
    found[0].fill_(rank)
    work.wait()


def tried_again(work: dist.Work) -> None:
    while True:
        try:
            work.wait(timedelta(milliseconds=1))
        except RuntimeError:
            continue
        return


def write() -> None:
    for tensor in (whole, part, *list_of_parts):
        tensor.fill_(rank)


for start in STARTS:
    for end in (lambda work: work.wait(), tried_again):
        write()
        end(start())
for start in STARTS[:2]:
    write()
    taken(start())
for start in STARTS[:7]:
    write()
    polled(start())
    write()
    start().get_future().wait()
write()

# A message that was answered has arrived, whoever waits for it later.
for round_number in range(3):
    received = dist.irecv(part, src=other)
    dist.isend(torch.full((4,), float(round_number)), dst=other).wait()
    dist.barrier()
    received.wait()
    part.zero_()

# Two halves of one buffer, one of which has arrived.
halves = [dist.irecv(whole[:4], src=other, tag=1), dist.irecv(whole[4:], src=other, tag=2)]
sent = [dist.isend(torch.ones(4), dst=other, tag=tag) for tag in (1, 2)]
halves[0].wait()
whole[:4].zero_()
halves[1].wait()
for one in sent:
    one.wait()
dist.barrier()
dist.destroy_process_group()
