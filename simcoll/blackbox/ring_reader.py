"""Reads the ring of a black box: its records, and where one is torn or lacking.

Thousands of ranks make the same calls, so their rings differ in the times alone. Such a ring is compared with the last
one of its kind that was found sound, and not examined anew (:class:`Course`).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcoll.blackbox import format as layout
from simcoll.blackbox.format import closed, intact, settle
from simcoll.core.io import written_until
from simcoll.core.trace import calls_digest

if TYPE_CHECKING:
    from simcoll.blackbox.header import Header

SLOT_DTYPE = np.dtype([(name, layout.NUMPY_CODES[code]) for name, code in layout.SLOT_FIELDS])
"""One slot as numpy sees it."""
NO_SLOTS: npt.NDArray[Any] = np.zeros(0, SLOT_DTYPE)
CHUNK = 1024
"""Slots that are read at a time, at first."""
_MOST_RECORDS = 1 << 62
"""More than any rank makes: a larger index is damage, and would not fit what is computed with it."""

Slots = npt.NDArray[Any]
"""A structured array of :data:`SLOT_DTYPE`."""


_CALL = layout.offset_of(layout.SLOT_FIELDS, "scheduled_ns")
"""The bytes of a slot before its times: the call and its state."""
_PARTS = np.dtype(
    {
        "names": ["call", "check"],
        "formats": [f"V{_CALL}", f"V{SLOT_DTYPE['check'].itemsize}"],
        "offsets": [0, layout.offset_of(layout.SLOT_FIELDS, "check")],
        "itemsize": layout.SLOT.size,
    }
)
"""A slot without its times."""


@dataclass(frozen=True, slots=True, eq=False)
class RingRecords:
    """What a ring holds: the readable records, oldest first; the index of the last record that should be there and is
    not (0: none); that of the newest; and its course, where every record is sound.
    """

    slots: Slots
    last_gap: int
    newest: int
    course: Course | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A sound ring without its times, with which those of other ranks are compared.

    ``fixed`` are the bytes of the slots before the times, ``check`` those behind them, the index at their other end.
    ``ended`` says which calls have the time of an end, a byte each. ``most`` are the largest references to groups,
    calls and lines; ``alike`` is the digest of the calls, none of which a graph captured.
    """

    fixed: bytes
    check: bytes
    ended: bytes
    newest: int
    capacity: int
    most: tuple[int, int, int]
    alike: bytes

    @classmethod
    def of(cls, ring: Slots, slots: Slots, capacity: int) -> Course:
        """The course of a ring whose records are ``slots``."""
        parts, ended = ring.view(_PARTS), (ring["finished_ns"] != 0).tobytes()
        most = [int(slots[name].max(initial=0)) for name in ("group", "signature", "source")]
        newest = int(slots["index"][-1])
        fixed, check = parts["call"].tobytes(), parts["check"].tobytes()
        return cls(fixed, check, ended, newest, capacity, (most[0], most[1], most[2]), calls_digest(slots))

    def ring(self, ring: Slots, capacity: int) -> RingRecords | None:
        """The records of a ring that has the same calls in the same states; None for any other."""
        # Copies that are compared as bytes take half the time of a comparison of the fields.
        parts = ring.view(_PARTS)
        if capacity != self.capacity or parts["check"].tobytes() != self.check or parts["call"].tobytes() != self.fixed:
            return None
        if (ring["finished_ns"] != 0).tobytes() != self.ended:
            return None
        return RingRecords(_in_order(ring, self.newest, capacity), 0, self.newest, self)

    def refers_within(self, groups: int, signatures: int, sources: int) -> bool:
        """True if every reference is to one of so many entries, which are numbered without a gap."""
        group, signature, source = self.most
        return group < groups and signature < signatures and source < sources


def read_ring(fd: int, header: Header, courses: dict[object, Course]) -> RingRecords:
    """Read a ring; ``courses`` holds those of files read before, and takes in this one's."""
    ring, capacity = _written(fd, header), header.slot_count
    # File systems tell of holes by other pages, or not at all.
    filled = np.flatnonzero(ring["index"])
    ring = ring[: int(filled[-1]) + 1 if len(filled) else 0]
    if not len(ring):
        return RingRecords(ring, 0, 0)
    # One course of each outline is kept: a ring that is none of the same calls is examined by itself.
    data, last = ring.view(np.uint8).data, (len(ring) - 1) * layout.SLOT.size
    outline = len(ring), bytes(data[:_CALL]), bytes(data[last : last + _CALL])
    known = courses.get(outline)
    if known is not None and (found := known.ring(ring, capacity)) is not None:
        return found
    before = ring["state"].tobytes()
    slots = _whole_ring(ring, capacity)
    if slots is None:
        return RingRecords(*_sound_slots(ring, capacity))
    # A state that was settled is not what stands in the file; what a graph captured is kept apart.
    if len(slots) and not (slots["flags"] & layout.CAPTURED).any() and ring["state"].tobytes() == before:
        course = courses[outline] = Course.of(ring, slots, capacity)
        return RingRecords(slots, 0, course.newest, course)
    return RingRecords(slots, 0, int(slots["index"][-1]) if len(slots) else 0)


def _written(fd: int, header: Header) -> Slots:
    """The part of the ring that was ever written, in the file's order; a file that was cut gives less."""
    count, size = 0, layout.SLOT.size
    end = written_until(fd, header.ring_offset, header.ring_offset + header.slot_count * size)
    # Memory that nothing is read into is none: the system gives it page by page.
    ring = np.empty(-((header.ring_offset - end) // size), SLOT_DTYPE)
    data = ring.view(np.uint8).data
    if len(ring) < header.slot_count and os.preadv(fd, [data], header.ring_offset) == len(data):
        return ring
    while count < len(ring):
        # More at a time the more there is: a file system that knows of no holes gives zeros up to the end.
        part = ring[count : count + max(CHUNK, count)]
        place = data[count * size : (count + len(part)) * size]
        found = os.preadv(fd, [place], header.ring_offset + count * size) // size
        count += found
        blank = not (found and part["index"][found - 1]) and not part["index"][:found].any()
        if found < len(part) or (blank and not _goes_on(fd, header, count)):
            break
    # What was not needed is given back.
    return ring[:count] if 2 * count >= len(ring) else ring[:count].copy()


def _goes_on(fd: int, header: Header, start: int) -> bool:
    """True if anything stands behind a blank part of the ring, which is then lost and not its end."""
    looks = range(_next_data(fd, header, start), header.slot_count, CHUNK)
    return any(any(os.pread(fd, layout.SLOT.size, header.ring_offset + at * layout.SLOT.size)) for at in looks)


def _next_data(fd: int, header: Header, start: int) -> int:
    """The slot, from this one on, before which the file holds nothing; a file system may not know of holes."""
    offset = header.ring_offset + start * layout.SLOT.size
    try:
        return start + (os.lseek(fd, offset, os.SEEK_DATA) - offset) // layout.SLOT.size
    except OSError as error:
        return header.slot_count if error.errno == errno.ENXIO else start


def _sound_slots(ring: Slots, capacity: int) -> tuple[Slots, int, int]:
    """The readable records, oldest first; the index of the last record that should be there and is not (0: none); the
    newest index.

    The slot that the rank was writing when it died is no gap: nothing came after it.
    """
    place = np.arange(len(ring), dtype=np.uint64)
    index, size = ring["index"], np.uint64(capacity)
    sound = (index > 0) & closed(ring) & intact(ring)
    sound &= ((index - np.uint64(1)) % size == place) & (index <= np.uint64(_MOST_RECORDS))
    newest = int(index[sound].max()) if sound.any() else 0
    if newest > capacity:
        sound &= index > np.uint64(newest - capacity)
    expected = np.arange(max(newest - capacity, 0) + 1, newest + 1, dtype=np.uint64)
    found = np.sort(index[sound])
    gaps = np.setdiff1d(expected, found, assume_unique=True)
    # In a ring that wrapped, the oldest place is the one that is overwritten next.
    gaps = gaps[gaps != newest - capacity + 1] if newest > capacity else gaps
    slots = ring[sound]
    settle(slots)
    return slots[np.argsort(slots["index"])], int(gaps.max()) if gaps.size else 0, newest


def _whole_ring(ring: Slots, capacity: int) -> Slots | None:
    """The records oldest first where none is torn or lacking, which a few comparisons show; None otherwise."""
    index = ring["index"]
    newest = int(index.max(initial=0))
    count, last = min(newest, capacity), newest % capacity if newest > capacity else 0
    if newest > _MOST_RECORDS or len(ring) < count or (newest > capacity and len(ring) != capacity):
        return None
    expected = np.arange(newest - count + 1, newest + 1, dtype=np.uint64)
    if last:
        expected = np.roll(expected, last)
    used = ring[:count]
    if not np.array_equal(index[:count], expected) or not closed(used).all():
        return None
    if index[count:].any() or not intact(used).all():
        return None
    slots = _in_order(ring, newest, capacity)
    settle(slots)
    return slots


def _in_order(ring: Slots, newest: int, capacity: int) -> Slots:
    """The records of a ring in which none is lacking, oldest first; ``newest`` is the index of the last."""
    last = newest % capacity if newest > capacity else 0
    return np.concatenate([ring[last:], ring[:last]]) if last else ring[: min(newest, capacity)]
