"""The moment at which a rank begins to wait for the futures that were taken while it computed gradients.

DistributedDataParallel takes the future of each bucket's call in the backward pass, and waits for all of them in C++
when the pass ends. Nobody sees this wait; the end of the pass is seen, because autograd calls what was queued for it in
order, and DDP queues its wait behind its last bucket.
"""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch.autograd import Variable


class HeldUp(Protocol):
    """The record of a call whose future was taken."""

    def held_up(self) -> None:
        """Note that the rank begins to wait for it."""
        ...


class _Pass(threading.local):
    """The backward pass of this thread, by autograd's number, and the calls whose futures were taken in it."""

    number = -1
    calls: list[HeldUp] | None = None


_here = _Pass()


def note_at_end_of_backward(call: HeldUp) -> None:
    """Have a call told when the backward pass ends that runs on this thread; nothing happens outside of one."""
    number = torch._C._current_graph_task_id()
    if number < 0:
        return
    if number != _here.number or _here.calls is None:
        calls: list[HeldUp] = []
        _here.number, _here.calls = number, calls
        Variable._execution_engine.queue_callback(lambda: _end(calls))
    _here.calls.append(call)


def _end(calls: list[HeldUp]) -> None:
    while calls:
        calls.pop(0).held_up()
