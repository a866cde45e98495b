"""Launches a process's GPU calls of different groups in the order in which its program made them.

NCCL wants it so: operations of several communicators that can hold each other up must be launched in one order on all
ranks, and a program that keeps to it must not lose it because its calls are proved by several threads (source: NCCL
user guide, "Using multiple NCCL communicators concurrently"). So a call that is proved waits for the launch of all that
the program made before it, in whichever group.

A program without one order for all ranks may work too, as long as its kernels fit onto the GPU together. Then a call
can be proved while another, made before it, waits for a rank that only this one sets free. So a call waits for those
before it no longer than :data:`PATIENCE` seconds, unless they would keep it waiting on the GPU as well; and no call
waits again for a call that one has stopped waiting for.

A call that is launched later, from another thread, keeps its place among the work of its CUDA stream. A backend orders
a call behind the stream that is current where it is launched. In the queue's thread that is a stream of that thread's
own, which waits for the point that the caller's stream had come to when it made the call, and for nothing that was
queued there since: the call overlaps with what it would have overlapped with.

Each thread has streams of its own, so that a call never waits for work that only a later call of another group needs.
Memory that a backend allocates while it launches a call belongs to that stream. It is freed when the caller's stream
waits for the call, unknown to this one; so the stream itself waits for such a call before the memory is used again.
Asynchronous calls of one group run one after the other anyway.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from types import TracebackType

import torch
from torch.distributed import Work

from simcoll.backends.base import Backend
from simcoll.core.rank_local import ProcessOwned
from simcoll.recorder.arguments import Arguments


class _Streams(threading.local):
    """The streams on which a thread launches, by device."""

    def __init__(self) -> None:
        self.of: dict[torch.device, torch.cuda.Stream] = {}


_streams = _Streams()


class CallerStream:
    """The point that the caller's stream had reached at a call; as a context, the stream to launch the call on."""

    def __init__(self, device: torch.device | None, *, allocates: bool = False) -> None:
        """``device`` is a CUDA device, or None: then the context does nothing; ``allocates``: the launch does."""
        self._device = device
        self._allocates = allocates
        self._context: torch.cuda.StreamContext | None = None
        self._reached: torch.cuda.Event | None = None
        if device is not None:
            self._reached = torch.cuda.current_stream(device).record_event()

    @classmethod
    def of(cls, arguments: Arguments, backend: Backend | None) -> CallerStream:
        """The stream that a call belongs to."""
        place = arguments.on
        on_cuda = place is not None and place.type == "cuda"
        allocates = backend is not None and arguments.method.name in backend.allocates
        return cls(place if on_cuda else None, allocates=allocates)

    def __enter__(self) -> None:
        if self._device is None or self._reached is None:
            return
        stream = _streams.of.get(self._device)
        if stream is None:
            stream = _streams.of[self._device] = torch.cuda.Stream(self._device)
        stream.wait_event(self._reached)
        self._context = torch.cuda.stream(stream)
        self._context.__enter__()

    def launched(self, work: object) -> None:
        """Take the Work of the launch; called on the stream of the launch. Nothing waits on the host."""
        if self._device is not None and self._allocates and isinstance(work, Work):
            # The future of a call on a GPU is complete at once, and waiting for it is an order to the stream.
            work.get_future().wait()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._context is not None:
            self._context.__exit__(kind, value, traceback)


PATIENCE = 2.0

LOOK_UP_SECONDS = 0.5

_ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
"""Variables, and the values with which a GPU runs the calls of different streams in the order of their launches."""


class LaunchOrder(ProcessOwned):
    """The calls of this process that are not launched yet, in the order of the program."""

    def __init__(self, patience: float | None = PATIENCE) -> None:
        self._patience = patience
        self._begin()
        super().__init__()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Turn] = deque()

    def join(self, turn: Turn) -> None:
        """The program makes a call now."""
        with self._changed:
            self._waiting.append(turn)

    def come_to(self, turn: Turn) -> bool:
        """Return when every call before this one has left, or was overtaken; False if that took too long."""
        if self._waiting[0] is turn:
            return True
        with self._changed:
            if self._changed.wait_for(lambda: all(one.overtaken for one in self._before(turn)), self._patience):
                return True
            for one in self._before(turn):
                one.overtaken = True
            self._changed.notify_all()
            return False

    def _before(self, turn: Turn) -> Iterator[Turn]:
        return takewhile(lambda one: one is not turn, self._waiting)

    def await_launches(self, look_up: Callable[[], object], every: float = LOOK_UP_SECONDS) -> None:
        """Return when all calls made so far by the program have left; ``look_up`` is called every so many seconds."""
        with self._changed:
            before = set(self._waiting)
        while before:
            with self._changed:
                # Calls that arrive now are behind them.
                if self._changed.wait_for(lambda: not self._waiting or self._waiting[0] not in before, every):
                    return
            look_up()

    def leave(self, turn: Turn) -> None:
        """The call was launched, or never will be."""
        with self._changed:
            self._waiting.remove(turn)
            self._changed.notify_all()

    def forked(self) -> None:
        """The calls are the parent's."""
        self._begin()


def patience(environment: Mapping[str, str]) -> float | None:
    """Returns the seconds that a call waits for those before it; None: without limit, as it would on the GPU."""
    one_queue = any(environment.get(name) == value for name, value in _ONE_QUEUE.items())
    return None if one_queue else PATIENCE


LAUNCHES = LaunchOrder(patience(os.environ))


class Turn:
    """The turn of one call on a GPU to be launched."""

    __slots__ = ("_order", "_taken", "overtaken")

    def __init__(self, order: LaunchOrder = LAUNCHES) -> None:
        self._order = order
        self._taken = False
        self.overtaken = False
        """True once a later call has stopped waiting for this one."""

    def take(self, call: object = None) -> None:
        """The program makes the call."""
        self._order.join(self)
        self._taken = True

    def come(self) -> None:
        """Return when the call may be launched."""
        self._order.come_to(self)

    def end(self) -> None:
        """The call was launched, or never will be."""
        if self._taken:
            self._taken = False
            self._order.leave(self)


def turn_on(device: torch.device | None) -> Turn | None:
    """The turn of a call that runs on this device; None on the CPU, where a call waits for none of another group."""
    return None if device is None or device.type != "cuda" else Turn()
