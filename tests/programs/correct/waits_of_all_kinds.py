# ranks=2
"""Ends observed in every way but wait(), a look ahead that is left over, results that nobody can read."""

import time

import torch
import torch.distributed as dist


def polled(work) -> None:
    while not work.is_completed():
        time.sleep(0.001)


dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(8)
polled(dist.all_reduce(value, async_op=True))
value.add_(1)
dist.all_reduce(value, async_op=True).get_future().wait()
value.add_(1)
torch.futures.wait_all([dist.all_reduce(value, async_op=True).get_future()])
value.add_(1)
work = dist.all_reduce(value, async_op=True)
while not work.is_success():
    time.sleep(0.001)

pending = None
for step in range(5):
    if pending is not None:
        pending.wait()
    metric = torch.full((1,), float(step))
    pending = dist.all_reduce(metric, async_op=True)

dist.all_reduce(torch.ones(3), async_op=True)
dist.barrier(async_op=True)
if rank == 0:
    note = torch.ones(2)
    sent = dist.isend(note, dst=1)
    dist.recv(torch.empty(1), src=1)  # the answer says that the message is there
    note.zero_()
    sent.wait()
else:
    note = torch.zeros(2)
    dist.recv(note, src=0)
    dist.send(torch.zeros(1), dst=0)
    assert note.sum() == 2
dist.barrier()
work = dist.all_reduce(value, async_op=True)
dist.barrier()
value.mul_(2)
work.wait()
dist.destroy_process_group()
