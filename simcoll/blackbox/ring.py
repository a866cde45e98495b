"""The ring of a black box as a rank writes it: the slots of its last calls, changed in place.

:class:`PlainRing` is the ring in Python. Where ``_ring.c`` was compiled, :func:`ring_in` makes its twin, which has the
same methods and leaves the same bytes: of all that simcoll does in a call, this is what costs a program most.

Threads: every method may be called from any thread, and from a signal handler.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from struct import Struct
from typing import Protocol

from simcoll.blackbox import format as layout
from simcoll.blackbox.box import NO_TICKET, CallSlots
from simcoll.blackbox.format import seal
from simcoll.core.clock import AHEAD_NS, now_ns
from simcoll.core.native import native
from simcoll.core.record import State

_TIME = Struct("<Q")
_PACK_SLOT = layout.SLOT.pack_into
_SLOT_SIZE = layout.SLOT.size
# Plain numbers: every look at a member of an enum costs.
_STARTED_STATE, _COMPLETED_STATE = int(State.STARTED), int(State.COMPLETED)
_TIMES = Struct("<QQQ")
"""A slot from ``scheduled_ns`` to ``finished_ns``."""
_RESIGNED = Struct("<IIBBH")
"""A slot from ``signature`` to ``seal``: both are written at once."""
_SIGNATURE = layout.offset_of(layout.SLOT_FIELDS, "signature")
_FLAGS = layout.offset_of(layout.SLOT_FIELDS, "flags")
_STATE = layout.offset_of(layout.SLOT_FIELDS, "state")
_SCHEDULED = layout.offset_of(layout.SLOT_FIELDS, "scheduled_ns")
_STARTED = layout.offset_of(layout.SLOT_FIELDS, "started_ns")
_FINISHED = layout.offset_of(layout.SLOT_FIELDS, "finished_ns")
_WAIT = Struct("<I")
_WAIT_US = layout.offset_of(layout.SLOT_FIELDS, "wait_us")
_LONGEST_US = 0xFFFFFFFF


class Ring(CallSlots, Protocol):
    """The slots of a black box, open for writing until :meth:`close`."""

    @property
    def next(self) -> int:
        """The ticket of the next call: the number of calls so far."""
        ...


def ring_in(memory: mmap.mmap, slots: int, group_rows: int) -> Ring:
    """The ring of ``slots`` in the mapping of a black box with a table of ``group_rows``."""
    compiled = native("simcoll.blackbox._ring")
    if compiled is None:
        return PlainRing(memory, slots, group_rows)
    start = ctypes.c_char.from_buffer(memory)
    ring: Ring = compiled.Ring(
        start, ctypes.addressof(start), layout.PAGE, group_rows, layout.ring_offset(layout.GROUP_ROWS), slots, AHEAD_NS
    )
    return ring


class PlainRing:
    """A :class:`Ring` in Python."""

    def __init__(self, memory: mmap.mmap, slots: int, group_rows: int) -> None:
        self.next = 0
        self._map = memory
        self._slots = slots
        self._group_rows = group_rows
        self._ring = layout.ring_offset(layout.GROUP_ROWS)
        self._open = True
        self._lock = threading.RLock()

    def write(
        self, group: int, sequence: int, signature: int, source: int, p2p_sequence: int, state: State, flags: int, /
    ) -> int:
        """Write down that a call was made; returns its ticket."""
        if not self._open:
            return NO_TICKET
        with self._lock:
            ticket = self.next
            offset = self._ring + ticket % self._slots * _SLOT_SIZE
            if ticket >= self._slots:
                self._drop(offset)
            now = now_ns()
            sequence, p2p_sequence = sequence & 0xFFFFFFFF, p2p_sequence & 0xFFFFFFFF
            _PACK_SLOT(
                self._map,
                offset,
                ticket + 1,
                group,
                sequence,
                p2p_sequence,
                signature,
                source,
                state,
                flags,
                seal(group, sequence, p2p_sequence, signature, source),
                now,
                now if state == _STARTED_STATE else 0,
                0,
                ticket + 1 & 0xFFFFFFFF,
                0,
            )
            self.next = ticket + 1
            return ticket

    def advance(self, ticket: int, state: State = State.COMPLETED, /) -> None:
        """Write down that the call runs (STARTED), or how it ended."""
        if not self._open or ticket < 0:
            return
        now = now_ns()
        with self._lock:
            if ticket + self._slots < self.next:
                return
            offset = self._ring + ticket % self._slots * _SLOT_SIZE
            # The time first: a reader that sees the state then finds its time.
            _TIME.pack_into(self._map, offset + (_STARTED if state == _STARTED_STATE else _FINISHED), now)
            self._map[offset + _STATE] = state

    def mark(self, ticket: int, flag: int, /) -> None:
        """Set a bit of the record's ``flags``."""
        if not self._open or ticket < 0:
            return
        with self._lock:
            if ticket + self._slots >= self.next:
                self._map[self._ring + ticket % self._slots * _SLOT_SIZE + _FLAGS] |= flag

    def waits(self, ticket: int, flag: int, /) -> None:
        """Write down that the rank begins to wait for an asynchronous call."""
        if not self._open or ticket < 0:
            return
        now = now_ns()
        with self._lock:
            if ticket + self._slots < self.next:
                return
            offset = self._ring + ticket % self._slots * _SLOT_SIZE
            known = _WAIT.unpack_from(self._map, offset + _WAIT_US)[0]
            if self._map[offset + _FLAGS] & layout.ASYNCHRONOUS and not known:
                after = (now - _TIME.unpack_from(self._map, offset + _SCHEDULED)[0]) // 1000
                _WAIT.pack_into(self._map, offset + _WAIT_US, min(max(after, 1), _LONGEST_US))
            self._map[offset + _FLAGS] |= flag

    def ran_on_device(self, ticket: int, began_ns: int, ended_ns: int = 0, /) -> None:
        """Write down the times at which a device began and ended the call (0: it runs)."""
        if not self._open or ticket < 0:
            return
        with self._lock:
            offset = self._ring + ticket % self._slots * _SLOT_SIZE
            if ticket + self._slots < self.next or self._map[offset + _STATE] > _STARTED_STATE:
                return
            made = _TIMES.unpack_from(self._map, offset + _SCHEDULED)[0]
            late = max(made - began_ns, 0)
            _TIMES.pack_into(self._map, offset + _SCHEDULED, made, began_ns + late, ended_ns and ended_ns + late)
            self._map[offset + _FLAGS] |= layout.ON_DEVICE
            self._map[offset + _STATE] = _COMPLETED_STATE if ended_ns else _STARTED_STATE

    def ended_on_device(self, ticket: int, /) -> None:
        """Write down that a device has ended the call."""
        with self._lock:
            offset = self._ring + ticket % self._slots * _SLOT_SIZE
            if self._open and ticket >= 0 and self._map[offset + _STATE] <= _STARTED_STATE:
                self.advance(ticket)

    def resign(self, ticket: int, signature: int, /) -> None:
        """Give the record another signature."""
        if not self._open or ticket < 0:
            return
        with self._lock:
            if ticket + self._slots >= self.next:
                offset = self._ring + ticket % self._slots * _SLOT_SIZE
                _, group, sequence, p2p_sequence, _, source, *state = layout.SLOT.unpack_from(self._map, offset)[:8]
                own = seal(group, sequence, p2p_sequence, signature, source)
                _RESIGNED.pack_into(self._map, offset + _SIGNATURE, signature, source, *state, own)

    def close(self) -> None:
        """Write no more; does not wait for a thread that writes, which a forked child does not have."""
        self._open = False

    def _drop(self, offset: int) -> None:
        """Keep in the table of groups the numbers of the call that the ring is about to overwrite."""
        old = layout.SLOT.unpack_from(self._map, offset)
        _, group, sequence, p2p_sequence = old[:4]
        if group >= self._group_rows:
            return
        row = layout.PAGE + group * layout.GROUP.size
        dropped, dropped_p2p, records = layout.GROUP.unpack_from(self._map, row)
        if p2p_sequence:
            dropped_p2p = p2p_sequence
        else:
            dropped = sequence
        layout.GROUP.pack_into(self._map, row, dropped, dropped_p2p, records + 1)
