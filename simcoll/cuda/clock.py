"""Converts the times of CUDA events to the host's wall clock.

An event tells how long after another event it came. So one that comes when the host looks at its clock, an *anchor*,
dates every other. What an event tells is a float of 32 bits in milliseconds, 1 µs apart after ten seconds, and two
clocks drift: so a new anchor is made every two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

_RENEWED_SECONDS = 2.0
_PATIENCE_SECONDS = 0.001
_POLL_SECONDS = 20e-6
_TRIES = 64
"""Looks without a pause, some 50 µs: whoever pauses may get the interpreter back late."""


class DeviceEvent(Protocol):
    """A mark in a stream."""

    def query(self) -> bool:
        """Whether the device has come to it."""
        ...

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from here to another event, both of which the device has come to."""
        ...


class Device(Protocol):
    """A device that runs what is queued on its streams, each in order, as the calling thread uses it.

    :class:`simcoll.cuda.events.CudaDevice` is the real one. Nothing here waits; RuntimeError where the device has
    failed.
    """

    def event(self) -> DeviceEvent:
        """A new event."""
        ...

    def current(self) -> Any:
        """The stream on which the thread's calls are queued."""
        ...

    def record(self, event: Any, stream: Any, /) -> None:
        """Put an event at the end of a stream."""
        ...

    def record_behind(self, work: Any, event: Any, /) -> None:
        """Put an event behind the end of a call, on no stream of the program's."""
        ...

    def record_aside(self, event: Any, /) -> None:
        """Put an event on a stream that has nothing to do."""
        ...

    def capturing(self) -> bool:
        """Whether what the thread queues is captured into a graph, and does not run."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """An event, and when it came (wall clock, nanoseconds)."""

    event: DeviceEvent
    at_ns: int

    def milliseconds(self, event: DeviceEvent) -> float:
        """How long after the anchor an event came."""
        return self.event.elapsed_time(event)

    def nanoseconds(self, milliseconds: float) -> int:
        """The wall clock so long after the anchor."""
        return self.at_ns + round(milliseconds * 1e6)


class DeviceClock:
    """The anchors of one device, made by one thread."""

    def __init__(
        self,
        device: Device,
        wall: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.anchor: Anchor | None = None
        """The one made last."""
        self._device = device
        self._wall, self._monotonic, self._sleep = wall, monotonic, sleep
        self._made = 0.0
        self._late: tuple[DeviceEvent, int] | None = None

    def look(self) -> None:
        """Make a new anchor if it is time, which takes a millisecond at the most; raises RuntimeError."""
        if self.anchor is not None and self._monotonic() - self._made < _RENEWED_SECONDS:
            return
        if self._late is not None:
            self._take_late(*self._late)
            return
        event = self._device.event()
        before = self._wall()
        self._device.record_aside(event)
        self._await(event, before)

    def _await(self, event: DeviceEvent, before: int) -> None:
        deadline = self._monotonic() + _PATIENCE_SECONDS
        tries = 0
        while not event.query():
            before = self._wall()
            tries += 1
            if tries > _TRIES:
                if self._monotonic() >= deadline:
                    self._late = event, before
                    return
                self._sleep(_POLL_SECONDS)
        self._take(event, before)

    def _take_late(self, event: DeviceEvent, before: int) -> None:
        """The stream was held up: an anchor known as well as the looks are apart, until there is a better one."""
        if not event.query():
            self._late = event, self._wall()
            return
        self._late = None
        if self.anchor is None:
            self._take(event, before)
            self._made -= _RENEWED_SECONDS

    def _take(self, event: DeviceEvent, before: int) -> None:
        self.anchor = Anchor(event, (before + self._wall()) // 2)
        self._made = self._monotonic()
