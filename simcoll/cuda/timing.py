"""The times at which calls begin and end on a device: two events around each, looked at some time later.

A backend that queues calls on a device's streams returns at once, and waiting for its Work only queues later work
behind it: the host sees no end. So an event goes into the stream before the call and one behind its end; they are
asked now and then (:mod:`simcoll.cuda.watcher`), never waited for, and used again.

Behind a call that says it is asynchronous the end is marked on a stream of ours, for which its Work must be asked to
have that stream wait. Then torch takes the call for waited for, and drops the tensors that it holds until a thread
has waited: so they are held here instead, as long as torch would have (source: ``stashed_for_allocator_safety_`` of
ProcessGroupNCCL.cpp). The last holder of a tensor must let it go in a thread of the program's: views take a lock of
autograd's. Memory that a backend allocates itself only its Work can hold, so the end of such a call is marked where the
program waits for it.

Dates by the host's wall clock come from *anchors*: an event tells how long after another event it came, so an event
that comes when the host looks at its clock dates every other. That time is a float of 32 bits in milliseconds, 1 µs
apart after ten seconds, and two clocks drift: so a new anchor is made every two seconds.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from simcoll.core.clock import now_ns
from simcoll.errors import ConfigurationError

_RENEWED_SECONDS = 2.0
_PATIENCE_SECONDS = 0.001
_POLL_SECONDS = 20e-6
_TRIES = 64
"""Looks without a pause, some 50 µs: a thread that pauses may get the interpreter back late."""


class DeviceEvent(Protocol):
    """A mark in a stream."""

    def query(self) -> bool:
        """True if the device has come to it."""
        ...

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from here to another event, both of which the device has come to."""
        ...


class Device(Protocol):
    """A device that runs the work queued on its streams, each in order, as the calling thread uses it.

    :class:`simcoll.cuda.events.CudaDevice` is the real one. No method waits; RuntimeError where the device has
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
        """True if the thread's calls are captured into a graph instead of run."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """An event, and the time at which it came (wall clock, nanoseconds)."""

    event: DeviceEvent
    at_ns: int

    def milliseconds(self, event: DeviceEvent) -> float:
        """Returns the milliseconds from the anchor to an event."""
        return self.event.elapsed_time(event)

    def nanoseconds(self, milliseconds: float) -> int:
        """The wall clock so long after the anchor."""
        return self.at_ns + round(milliseconds * 1e6)


class DeviceClock:
    """The anchors of one device, made by one thread."""

    def __init__(
        self,
        device: Device,
        wall: Callable[[], int] = now_ns,
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


_FARTHEST = 1 << 20

_PATIENT_LOOKS = 20
"""Looks that are given to the first anchor; from then on calls are recorded without times as long as there is none."""


def calls_between_times() -> int:
    """N, the environment's SIMCOLL_TIMES_EVERY: each N-th call of a group is timed, by default every one; 0: none.

    All ranks time the same calls, so they must agree on it. Raises :class:`~simcoll.errors.ConfigurationError` on a
    value out of range.
    """
    text = os.environ.get("SIMCOLL_TIMES_EVERY", "") or "1"
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and int(text) <= _FARTHEST):
        expected = f"a whole number from 0 (no times) to {_FARTHEST}"
        raise ConfigurationError(f"SIMCOLL_TIMES_EVERY={text!r:.80}: expected {expected}; correct or unset it")
    return int(text)


class TimedRecord(Protocol):
    """The receiver of a call's times: an entry, or those of a section that runs as one."""

    def ran_on_device(self, began_ns: int, ended_ns: int = 0) -> None:
        """The device began it, and ended it (0: it runs)."""
        ...

    def ended_on_device(self) -> None:
        """The device ended it; the time of its begin is not known."""
        ...


@dataclass(slots=True, eq=False)
class Timed:
    """A call that the device has not been seen to end.

    ``start`` is None where it is not timed. ``marked`` says that ``end`` is in a stream, ``late`` that it came there
    only when the program waited for the call, so that it tells no time.
    """

    place: DevicePlace
    stream: Any
    recorded: TimedRecord | None
    start: DeviceEvent | None
    end: DeviceEvent
    anchor: Anchor | None
    held: object = None
    marked: bool = False
    late: bool = False
    running: bool = False

    def awaited(self) -> None:
        """The program has had the current stream of this thread wait for its end."""
        self.held = None
        if self.marked or self.late:
            return
        self.late = True
        device = self.place.device
        try:
            if not device.capturing():
                device.record(self.end, device.current())
                self.marked = True
        except RuntimeError:
            self.place.fail()


@dataclass(slots=True, eq=False)
class DeviceQueue:
    """Calls that the device runs one by one, oldest first; the last one ended ``until`` ms after ``anchor``."""

    calls: deque[Timed] = field(default_factory=deque)
    anchor: Anchor | None = None
    until: float = 0.0


class DevicePlace:
    """The calls in flight on one device of this process. The program's threads add them; one thread at a time polls."""

    def __init__(self, device: Device, clock: DeviceClock | None = None) -> None:
        self.device = device
        self.clock = clock or DeviceClock(device)
        self.failed = False
        self.queues: dict[tuple[object, int], DeviceQueue] = {}
        """By the log of a group, and the peer of messages that are not sent together with others (-1: everything
        else).
        """
        self._events: list[DeviceEvent] = []
        self._let_go: list[object] = []
        self._undated = _PATIENT_LOOKS

    def fail(self) -> None:
        """Tell no more times: the device has failed, and the program hears of it from the backend."""
        self.failed = True

    def begin(self, recorded: TimedRecord, *, timed: bool) -> Timed | None:
        """A call is about to be queued on the current stream; None where its end cannot be timed."""
        if self._let_go:
            # In place: a list that the looking thread still adds to would be let go there.
            self._let_go.clear()
        device, start = self.device, None
        try:
            if self.failed or device.capturing():
                return None
            stream = device.current()
            if timed:
                start = self._event()
                device.record(start, stream)
            return Timed(self, stream, recorded, start, self._event(), self.clock.anchor)
        except RuntimeError:
            self.fail()
            return None

    def _event(self) -> DeviceEvent:
        try:
            return self._events.pop()
        except IndexError:
            return self.device.event()

    def queued(self, timed: Timed, queue: tuple[object, int], work: object, held: object, *, marked_late: bool) -> None:
        """The call was queued: ``work`` is its Work, None where it ends in its stream's order.

        ``held`` are its tensors. A ``marked_late`` one ends when a thread has waited for it.
        """
        try:
            if work is None:
                self.device.record(timed.end, timed.stream)
                timed.marked = True
            elif not marked_late:
                timed.held = held
                self.device.record_behind(work, timed.end)
                timed.marked = True
        except RuntimeError:
            self.fail()
            return
        found = self.queues.get(queue)
        if found is None:
            found = self.queues.setdefault(queue, DeviceQueue())
        found.calls.append(timed)

    def look(self) -> bool:
        """Write down the calls begun and ended since the last time; returns True if any is under way."""
        try:
            if not self.failed:
                self.clock.look()
                if self.clock.anchor is not None or self._undated <= 0:
                    for queue in list(self.queues.values()):
                        self._look_at(queue)
                self._undated -= self.clock.anchor is None
        except RuntimeError:
            # A query of any event on a failed device only repeats the device's error.
            self.fail()
        return self.under_way

    def forget(self, queue: tuple[object, int]) -> None:
        """Tell no more of a queue. Its group may be about to be aborted: tensors are kept until the next call."""
        self._let_go += [timed.held for timed in self.queues.pop(queue).calls]

    @property
    def under_way(self) -> bool:
        """True if there are calls whose end is still to be recorded."""
        return not self.failed and any(queue.calls for queue in list(self.queues.values()))

    def expects(self, log: object = None) -> bool:
        """True if the end of a call (of one group's log, or of any) will come though the program does nothing more."""
        queues = [queue for key, queue in list(self.queues.items()) if log is None or key[0] is log]
        return not self.failed and any(timed.marked for queue in queues for timed in list(queue.calls))

    def _look_at(self, queue: DeviceQueue) -> None:
        for _ in range(_ended(queue.calls)):
            self._settle(queue, queue.calls.popleft())
        if not queue.calls or (first := queue.calls[0]).running or first.start is None or not first.start.query():
            return
        if (anchor := self._anchor_of(first)) is not None and first.recorded is not None:
            first.running = True
            began = anchor.milliseconds(first.start)
            first.recorded.ran_on_device(
                anchor.nanoseconds(max(began, queue.until) if anchor is queue.anchor else began)
            )

    def _anchor_of(self, timed: Timed) -> Anchor | None:
        """The anchor that was there when the call was made: no event is dated by one that came much later."""
        timed.anchor = timed.anchor or self.clock.anchor
        return timed.anchor

    def _settle(self, queue: DeviceQueue, timed: Timed) -> None:
        start, anchor = timed.start, self._anchor_of(timed)
        # The record may keep the call, so the call drops the record: no reference cycle.
        recorded, timed.recorded = timed.recorded, None
        if recorded is None:
            return
        if start is None or anchor is None or timed.late or not timed.marked:
            recorded.ended_on_device()
        else:
            began = anchor.milliseconds(start)
            ended = began + start.elapsed_time(timed.end)
            if anchor is queue.anchor:
                # A call that was queued behind another one began when that ended, whatever was left on its own stream.
                began = min(max(began, queue.until), ended)
            queue.anchor, queue.until = anchor, ended
            recorded.ran_on_device(anchor.nanoseconds(began), anchor.nanoseconds(ended))
        if timed.held is not None:
            self._let_go.append(timed.held)
            timed.held = None
        if start is not None:
            self._events.append(start)
        if timed.marked and not timed.late:
            self._events.append(timed.end)


def _ended(calls: deque[Timed]) -> int:
    """Returns the number of calls that have ended: those before one that has ended have too."""
    count = 0
    for number, timed in enumerate(list(calls), 1):
        if timed.marked:
            if timed.end.query():
                count = number
            elif not timed.late:
                break
    return count
