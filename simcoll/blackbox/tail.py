"""The newest records of a black box, read again and again from outside while its rank writes.

A look reads what has been added since the look before: a few kilobytes, whatever the size of the file. The file is
opened for each look and never mapped: one that is cut or replaced meanwhile costs no more than a look.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from simcoll.blackbox import format as layout
from simcoll.blackbox.format import closed, intact, settle
from simcoll.blackbox.header import Header, unpack_header
from simcoll.blackbox.host_clocks import moved_box, moved_slots
from simcoll.blackbox.reader import BlackBox, box_of_newest, read_marks, resolve
from simcoll.blackbox.ring_reader import SLOT_DTYPE, Slots
from simcoll.blackbox.table import KnownEntries, TableEntries, is_blank, read_further
from simcoll.core.io import open_at_once
from simcoll.core.record import State
from simcoll.core.steps import StepMarks
from simcoll.errors import UnreadableError

_PIECE = 64 << 10
"""Bytes of the table of entries that are read at a time."""
_AHEAD = 64
"""Slots behind the newest known one that a look reads first."""
_NONE = np.zeros(0, SLOT_DTYPE)
_NO_INDEX = 1 << 62
"""More than any job makes calls: what a damaged file has in the place of an index."""


class BoxTail:
    """One black box, of which the newest ``most`` records are kept at hand.

    ``slots`` are those records, oldest first, without what CUDA graphs captured; ``newest`` is the index of the last
    record, 0 where there is none. Their times are ``later_ns`` later than they were written (:meth:`move`); the
    ``header`` is as it was. It is None, and ``problem`` says why, while the file cannot be read.
    """

    def __init__(self, path: Path, most: int, known: KnownEntries) -> None:
        self.path = path
        self.most = most
        self.header: Header | None = None
        self.problem = ""
        self.newest = 0
        self.slots: Slots = _NONE
        self.later_ns = 0
        self._written: Slots = _NONE
        self._ring = b""
        self.entries = TableEntries()
        self._known = known
        self._page = b""
        self._table_end = 0
        self._marks: StepMarks | None = None
        self._box: BlackBox | None = None

    def look(self) -> bool:
        """Read what the rank has written since the last look; returns True if there is anything new."""
        try:
            with open_at_once(self.path) as file:
                changed = self._look(file.fileno())
        except (OSError, UnreadableError) as error:
            changed = not self.problem
            self.problem = str(error)
        if changed:
            self._box = None
        return changed

    def box(self) -> BlackBox | None:
        """The newest records as a black box whose older ones were dropped; None while the file cannot be read."""
        if self._box is None and self.header is not None:
            self._box = moved_box(
                box_of_newest(str(self.path), self.header, self.entries, self._written, self._marks), self.later_ns
            )
        return self._box

    def move(self, later_ns: int) -> None:
        """Have all times be so much later than they were written, also those of later looks."""
        if later_ns != self.later_ns:
            self.later_ns, self._box = later_ns, None
            self.slots = moved_slots(self._written, later_ns) if later_ns else self._written

    def _look(self, fd: int) -> bool:
        page = os.pread(fd, layout.PAGE, 0)
        counters = page[layout.COUNTERS_OFFSET : layout.ABOUT_OFFSET]
        fixed = page[: layout.COUNTERS_OFFSET] + page[layout.ABOUT_OFFSET :]
        replaced = self.header is None or fixed != self._page[: len(fixed)]
        changed = replaced or counters != self._page[len(fixed) :]
        if changed:
            self.header = unpack_header(page, str(self.path), self._known)
            self._page, self.problem = fixed + counters, ""
            self._marks = read_marks(fd, self.header)
        if replaced:
            self.newest, self.slots, self.entries, self._table_end = 0, _NONE, TableEntries(), 0
            self._written = _NONE
        header = self.header
        assert header is not None
        newest = self._find_newest(fd, header)
        if newest == self.newest and not changed and not self._open():
            return self._read_table(fd, header)
        ring = self._newest_slots(fd, header, newest)
        told = self._read_table(fd, header)
        read, self._ring = self._ring, ring.tobytes()
        if newest == self.newest and not (changed or told) and read == self._ring:
            return False
        slots, _ = resolve(_sound(ring, newest), self.entries, 0)
        slots = slots[(slots["flags"] & layout.CAPTURED) == 0]
        changed = changed or told or newest != self.newest or slots.tobytes() != self._written.tobytes()
        self.newest, self._written = newest, slots
        self.slots = moved_slots(slots, self.later_ns) if self.later_ns else slots
        return changed

    def _open(self) -> bool:
        """True if a record at hand may still change its state."""
        return bool((self._written["state"] < State.COMPLETED).any())

    def _find_newest(self, fd: int, header: Header) -> int:
        """The index of the newest record: a little behind the last known one, or else found by bisection."""
        ahead = min(_AHEAD, header.slot_count)
        if self.newest:
            found = _indices(self._read(fd, header, self.newest, ahead))
            run = int((found == np.arange(self.newest, self.newest + ahead, dtype=np.uint64)).argmin())
            if found[0] == self.newest and found[run] != self.newest + run:
                return self.newest + run - 1
        # The slots up to the newest are those of this turn of the ring: their indices go on from the first slot's.
        first = self._index_at(fd, header, 0)
        if not 0 < first < _NO_INDEX:
            return 0
        low, high = 0, header.slot_count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._index_at(fd, header, middle) == first + middle:
                low = middle
            else:
                high = middle - 1
        return first + low

    def _index_at(self, fd: int, header: Header, place: int) -> int:
        data = os.pread(fd, 8, header.ring_offset + place * layout.SLOT.size)
        return int.from_bytes(data, "little") if len(data) == 8 else 0

    def _newest_slots(self, fd: int, header: Header, newest: int) -> Slots:
        """The slots of the newest records, oldest first, as they are."""
        count = min(self.most, newest, header.slot_count)
        return self._read(fd, header, newest - count + 1, count) if count else _NONE

    def _read(self, fd: int, header: Header, index: int, count: int) -> Slots:
        """The slots of ``count`` records from this index on, around the ring's end; what is not there is zero."""
        place = (index - 1) % header.slot_count
        first = min(count, header.slot_count - place)
        size = layout.SLOT.size
        data = os.pread(fd, first * size, header.ring_offset + place * size).ljust(first * size, b"\0")
        if first < count:
            data += os.pread(fd, (count - first) * size, header.ring_offset).ljust((count - first) * size, b"\0")
        return np.frombuffer(data, SLOT_DTYPE)

    def _read_table(self, fd: int, header: Header) -> bool:
        """Read the entries that were appended; returns True if there were any."""
        before, piece = self._table_end, layout.ENTRY.size
        while self._table_end < layout.TABLE_LIMIT + layout.TABLE_CHUNK:
            data = os.pread(fd, piece, header.table_offset + self._table_end)
            if is_blank(data):
                break
            taken = read_further(data, self.entries, self._known)
            self._table_end += taken
            if not taken and piece > layout.ENTRY_LIMIT:
                break
            piece = _PIECE if taken or piece < _PIECE else 2 * layout.ENTRY_LIMIT
        return self._table_end != before


def _sound(ring: Slots, newest: int) -> Slots:
    """The slots from behind the last one that is torn or lacking."""
    count = len(ring)
    if not count:
        return ring
    expected = np.arange(newest - count + 1, newest + 1, dtype=np.uint64)
    sound = (ring["index"] == expected) & closed(ring) & intact(ring)
    # The rank may be writing the last of them.
    torn = np.flatnonzero(~sound[:-1])
    ring = ring[int(torn[-1]) + 1 if len(torn) else 0 : count if sound[-1] else -1].copy()
    settle(ring)
    return ring


def _indices(slots: Slots) -> Slots:
    """The index of each slot, 0 where the slot is torn."""
    return np.where(closed(slots), slots["index"], 0)
