"""A black box in memory: the records of ranks that share a process, read without a file in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from simcoll.blackbox.box import NO_TICKET, Slot
from simcoll.core.record import UNKNOWN_SOURCE, Event, Group, Source, State
from simcoll.core.steps import STEP, ended_event, is_marked
from simcoll.core.trace import ASYNCHRONOUS, ON_DEVICE, SLOT, MemoryTrace
from simcoll.spec.call import Call


class MemoryBox:
    """One rank's records: a :class:`~simcoll.blackbox.box.Box`.

    ``clock`` gives the time in nanoseconds; by default it is the wall clock. Every thread of the rank may write.
    """

    def __init__(self, rank: int, world_size: int, mode: str, clock: Callable[[], int] = time.time_ns) -> None:
        self.rank = rank
        self.world_size = world_size
        self.mode = mode
        self._clock = clock
        self._groups: list[Group] = []
        self._signatures: dict[Call, int] = {}
        self._sources: dict[tuple[Source, ...], int] = {}
        self._lines: list[Source] = []
        self._slots: list[Slot] = []
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._steps = 0
        self._open = True

    def group(self, group: Group) -> int:
        """The index of a group that was just created."""
        with self._lock:
            self._groups.append(group)
            return len(self._groups) - 1

    def signature(self, call: Call) -> int:
        """The index of a call's signature."""
        return self._signatures.setdefault(call, len(self._signatures))

    def source(self, source: Source) -> int:
        """The index of a source line and its callers."""
        index = self._sources.setdefault(source.stack, len(self._lines))
        if index == len(self._lines):
            self._lines.append(source)
        return index

    def write(
        self, group: int, sequence: int, signature: int, source: int, p2p_sequence: int, state: State, flags: int
    ) -> int:
        """Write down that a call was made; the ticket that comes back names the record in later calls."""
        if not self._open:
            return NO_TICKET
        now = self._clock()
        started = now if state is State.STARTED else 0
        slot = Slot(group, sequence, signature, source, p2p_sequence, state, flags, now, started)
        with self._lock:
            self._slots.append(slot)
            return len(self._slots) - 1

    def advance(self, ticket: int, state: State = State.COMPLETED) -> None:
        """Write down that the call runs (STARTED), or how it ended."""
        if self._open and ticket >= 0:
            slot = self._slots[ticket]
            slot.state = state
            if state is State.STARTED:
                slot.started_ns = self._clock()
            else:
                slot.finished_ns = self._clock()

    def ran(self, ticket: int, began_ns: int, ended_ns: int, state: State) -> None:
        """Write down the times of the call by another clock than this rank's own, and how it ended."""
        slot = self._slots[ticket]
        slot.started_ns, slot.finished_ns, slot.state = began_ns, ended_ns, state

    def ran_on_device(self, ticket: int, began_ns: int, ended_ns: int = 0) -> None:
        """Write down the times at which a device began and ended the call (0: it runs)."""
        if self._open and ticket >= 0 and (slot := self._slots[ticket]).state <= State.STARTED:
            late = max(slot.scheduled_ns - began_ns, 0)
            slot.started_ns, slot.finished_ns = began_ns + late, ended_ns and ended_ns + late
            slot.state = State.COMPLETED if ended_ns else State.STARTED
            slot.flags |= ON_DEVICE

    def ended_on_device(self, ticket: int) -> None:
        """Write down that a device has ended the call."""
        if self._open and ticket >= 0 and self._slots[ticket].state <= State.STARTED:
            self.advance(ticket)

    def mark(self, ticket: int, flag: int) -> None:
        """Set a bit of the record's ``flags``."""
        if self._open and ticket >= 0:
            self._slots[ticket].flags |= flag

    def waits(self, ticket: int, flag: int) -> None:
        """Write down that the rank begins to wait for an asynchronous call, the first time; sets a bit of ``flags``."""
        if self._open and ticket >= 0:
            slot = self._slots[ticket]
            if slot.flags & ASYNCHRONOUS and not slot.wait_us:
                slot.wait_us = min(max((self._clock() - slot.scheduled_ns) // 1000, 1), 0xFFFFFFFF)
            slot.flags |= flag

    def resign(self, ticket: int, signature: int) -> None:
        """Give the record another signature, with fields that were not known when the call was made."""
        if self._open and ticket >= 0:
            self._slots[ticket].signature = signature

    def line_of(self, group: Group, sequence: int) -> Source:
        """The line that made a collective; an unknown one where none was written down."""
        wanted = {index for index, known in enumerate(self._groups) if known == group}
        for slot in reversed(self._slots):
            if slot.group in wanted and slot.sequence == sequence and not slot.p2p_sequence:
                return self._lines[slot.source]
        return UNKNOWN_SOURCE

    def event(self, kind: str, **data: object) -> None:
        """Write down something else that happened: see :class:`simcoll.core.record.Event`."""
        if self._open:
            self._events.append(Event(kind, self._clock(), data))

    def step(self) -> None:
        """Write down that a training step has ended."""
        with self._lock:
            self._steps += 1
            if is_marked(self._steps):
                self.event(STEP, number=self._steps)

    def close(self) -> None:
        """Write no more: the rank has ended, or was ended."""
        self._open = False

    def trace(self) -> MemoryTrace:
        """Returns a copy of everything recorded so far, for the verifier."""
        with self._lock:
            rows = [tuple(getattr(slot, name) for name in SLOT.names or ()) for slot in self._slots]
            return MemoryTrace(
                self.rank,
                self.world_size,
                self.mode,
                tuple(self._groups),
                tuple(self._signatures),
                tuple(self._lines),
                (*ended_event(self._steps), *self._events),
                np.array(rows, SLOT),
            )
