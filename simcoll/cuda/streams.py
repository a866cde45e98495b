"""Keeps a call that another thread launches later in the order of its CUDA stream.

A backend orders a call behind the stream that is current where it is launched. In the queue's thread that is a stream
of that thread's own, which waits for the point that the caller's stream had come to when it made the call, and for
nothing that was queued there since: the call overlaps with what it would have overlapped with.

Each thread has streams of its own, so that a call never waits for what only a later one of another group waits for.
What a backend allocates while it launches a call belongs to that stream. It is freed when the caller's stream waits for
the call, which says nothing to this one; so the stream itself waits for such a call before the memory is used again.
Asynchronous calls of one group run one after the other anyway.
"""

from __future__ import annotations

import threading
from types import TracebackType

import torch
from torch.distributed import Work

from simcoll.backends.base import Backend
from simcoll.recorder.arguments import Arguments


class _Streams(threading.local):
    """The streams on which a thread launches, by device."""

    def __init__(self) -> None:
        self.of: dict[torch.device, torch.cuda.Stream] = {}


_streams = _Streams()


class CallerStream:
    """Where the caller's stream stood when it made a call; as a context, the stream to launch it on."""

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
        """Tell which Work the launch gave; called on the stream of the launch. Nothing waits on the host."""
        if self._device is not None and self._allocates and isinstance(work, Work):
            # The future of a call on a GPU is complete at once, and waiting for it is an order to the stream.
            work.get_future().wait()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._context is not None:
            self._context.__exit__(kind, value, traceback)
