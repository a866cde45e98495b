"""The black box's layout on disk: the one place where its bytes are named. ``docs/black-box.md`` is checked against it.

All integers are little-endian. The file is a header page, a table of groups, a ring of slots, and a table of entries
that only grows. Everything before the entries has a fixed place, so that a writer needs one mapping and no bookkeeping.

A slot's seal is 16 bits by which a reader tells a call as it was written from one that a damaged disk or copy made up.
The seal covers the fields that identify the call. States and times change after it is made; they are bound to each
other.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.steps import MARKS

_FACTORS = (0x9E3779B97F4B, 0xC2B2AE3D27D5, 0x165667B19E37, 0xD6E8FEB86659, 0xA0761D6478BD)
"""Odd numbers of 48 bits without a pattern: a bit of any field changes some of the upper 16 bits of the sum."""

_GROUP, _SEQUENCE, _P2P, _SIGNATURE, _SOURCE = _FACTORS
_FIELDS = ("group", "sequence", "p2p_sequence", "signature", "source")


def seal(group: int, sequence: int, p2p_sequence: int, signature: int, source: int) -> int:
    """The seal of one call, 1 to 65,535, by its fields as they stand in the slot."""
    total = group * _GROUP + sequence * _SEQUENCE + p2p_sequence * _P2P + signature * _SIGNATURE + source * _SOURCE
    return total >> 32 & 0xFFFF or 1


def seals(ring: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The seal of each slot."""
    total: npt.NDArray[np.uint64] = np.zeros(len(ring), np.uint64)
    for field, factor in zip(_FIELDS, _FACTORS, strict=True):
        total += ring[field].astype(np.uint64) * np.uint64(factor)
    upper: npt.NDArray[np.uint64] = total >> np.uint64(32) & np.uint64(0xFFFF)
    return np.maximum(upper, np.uint64(1))


def intact(ring: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """A mask of the slots whose values a writer can have written. A file without any seal is taken as it is."""
    sound: npt.NDArray[np.bool_] = ring["state"] <= max(State)
    if ring["seal"].any():
        sound &= ring["seal"] == seals(ring)
    sound &= (ring["state"] < State.COMPLETED) | (ring["finished_ns"] > 0)
    return sound


def closed(ring: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """A mask of the slots that have the same index at both ends."""
    same: npt.NDArray[np.bool_] = ring["check"] == (ring["index"] & np.uint64(0xFFFFFFFF))
    return same


def settle(slots: npt.NDArray[Any]) -> None:
    """Give a call that has the time of its end, but not yet the state, the state that was to follow."""
    slots["state"][(slots["finished_ns"] > 0) & (slots["state"] < State.COMPLETED)] = State.COMPLETED


MAGIC = b"SIMCOLL\x1a"
VERSION = 3
FIRST_VERSION = 1
"""Without marks of steps, which were events, and with the members of groups one by one."""
# Version 2 has 64 bits of ``check`` and no ``wait_us``, which is therefore zero there.

SUFFIX = ".simcoll"

HEADER_FIELDS = (
    ("magic", "8s"),
    ("version", "I"),
    ("header_size", "I"),
    ("slot_size", "I"),
    ("slot_count", "I"),
    ("group_size", "I"),
    ("group_count", "I"),
    ("groups_offset", "Q"),
    ("ring_offset", "Q"),
    ("table_offset", "Q"),
    ("rank", "I"),
    ("world_size", "I"),
    ("pid", "I"),
    ("attempt", "I"),
    ("wall_ns", "Q"),
    ("monotonic_ns", "Q"),
    ("mode", "8s"),
    ("about_size", "I"),
    ("about_crc", "I"),
    ("marks_offset", "Q"),
    ("mark_count", "I"),
    ("header_crc", "I"),
)
"""The header, from byte 0. ``header_crc`` is the CRC-32 of the bytes before it, ``about_crc`` that of the JSON blob."""

_MARKS_FIELDS = ("marks_offset", "mark_count")
FIRST_HEADER_FIELDS = tuple(field for field in HEADER_FIELDS if field[0] not in _MARKS_FIELDS)
"""The header of version 1."""

COUNTER_FIELDS = (("lost", "Q"), ("closed_ns", "Q"), ("dumped_ns", "Q"), ("steps", "Q"))
"""Numbers in the header page that change while the rank runs; they stand outside the header's CRC. ``dumped_ns`` is in
a copy only: the time up to which the copy records the rank; ``steps`` counts those that the program has marked.
"""

GROUP_FIELDS = (("dropped", "I"), ("dropped_p2p", "I"), ("dropped_records", "Q"))
"""One row of the table of groups: the last sequence numbers that the ring has overwritten, and how many records."""

SLOT_FIELDS = (
    ("index", "Q"),
    ("group", "I"),
    ("sequence", "I"),
    ("p2p_sequence", "I"),
    ("signature", "I"),
    ("source", "I"),
    ("state", "B"),
    ("flags", "B"),
    ("seal", "H"),
    ("scheduled_ns", "Q"),
    ("started_ns", "Q"),
    ("finished_ns", "Q"),
    ("check", "I"),
    ("wait_us", "I"),
)
"""One record. ``index`` counts records from 1 and stands at both ends (``check``, its lower 32 bits): a slot torn by a
kill shows. ``seal`` is what :func:`seal` computes. ``wait_us`` is how long after ``scheduled_ns`` the rank
began to wait for an asynchronous call, in microseconds; 0 where it has not, or nobody saw it.
"""

ENTRY_FIELDS = (("marker", "4s"), ("size", "I"), ("crc", "I"), ("index", "I"), ("kind", "I"))
"""The header before an entry's JSON. The CRC-32 covers index, kind and JSON. Entries start at multiples of 4."""


NUMPY_CODES = {"Q": "<u8", "I": "<u4", "H": "<u2", "B": "u1"}
"""The types of fields as numpy knows them."""


def _struct(fields: tuple[tuple[str, str], ...]) -> Struct:
    return Struct("<" + "".join(code for _, code in fields))


def offset_of(fields: tuple[tuple[str, str], ...], name: str) -> int:
    """The offset of a field, in bytes from the start of its structure; raises ValueError for an unknown name."""
    names = [field for field, _ in fields]
    return _struct(fields[: names.index(name)]).size


HEADER = _struct(HEADER_FIELDS)
FIRST_HEADER = _struct(FIRST_HEADER_FIELDS)
MARK = Struct("<Q")
"""The time at which a step ended (wall clock, ns), at the place of the step's number."""

COUNTERS = _struct(COUNTER_FIELDS)
GROUP = _struct(GROUP_FIELDS)
SLOT = _struct(SLOT_FIELDS)
ENTRY = _struct(ENTRY_FIELDS)

PAGE = 4096
HEADER_CRC_OFFSET = offset_of(HEADER_FIELDS, "header_crc")
COUNTERS_OFFSET = 128
ABOUT_OFFSET = 160
ABOUT_LIMIT = PAGE - ABOUT_OFFSET
ENTRY_MARKER = b"SCe\n"
ENTRY_CRC_START = offset_of(ENTRY_FIELDS, "index")
ENTRY_LIMIT = 1 << 20

DEFAULT_SLOTS = 65_536
MIN_SLOTS = 16
MAX_SLOTS = 1 << 22
GROUP_ROWS = 4_096
MAX_GROUP_ROWS = 1 << 16
MAX_RANKS = 1 << 20
TABLE_CHUNK = 256 << 10
TABLE_LIMIT = 32 << 20
TABLE_RESERVE = 1 << 20
ABSENT = 0xFFFFFFFF
"""The index of an entry that could not be written: the table or the disk was full."""

ASYNCHRONOUS = 1
"""The bit of ``flags`` that says that the call returned before it was done."""

AWAITED = 2
"""The bit that says that a thread waits, or has waited, until the call is done."""

HANDED_ON = 4
"""The bit that says that the call's future was taken: its holder may wait, unseen."""

LET_GO = 8
"""The bit that says that the program let the call's Work go before anybody had waited for it."""

ON_DEVICE = 16
"""The bit that says that ``started_ns``, and ``finished_ns`` where the call has ended, are the device's own times."""

CAPTURED = 32
"""The bit that says that a CUDA graph captured the call: it did not run, and takes no place in its group."""

REPLAYED = 64
"""The bit that says that a CUDA graph ran a call that it had captured."""

LET_GO_LATER = 128
"""The bit that says that the rank had waited for another call before the program let this call's Work go."""


class EntryKind(IntEnum):
    """The kind of an entry of the growing table."""

    GROUP = 1
    SIGNATURE = 2
    SOURCE = 3
    EVENT = 4


def marks_offset(group_rows: int) -> int:
    """The offset at which the marks of steps start: behind the table of groups."""
    return PAGE + group_rows * GROUP.size


def ring_offset(group_rows: int, marks: int = MARKS) -> int:
    """The offset at which the ring starts: on the page after the marks."""
    return -(-(marks_offset(group_rows) + marks * MARK.size) // PAGE) * PAGE


def initial_size(slots: int = DEFAULT_SLOTS) -> int:
    """The bytes that a black box takes on the disk when it is created."""
    return ring_offset(GROUP_ROWS) + slots * SLOT.size + TABLE_CHUNK
