"""The black box's reader: columnar, bounded, and careful about records that a damaged file has lost.

The rule for damage: a record that cannot be read must never look like a call that the rank did not make. So all records
before the last gap count as dropped, like those that the ring has overwritten, and the readers of the box judge only
the records after it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.blackbox import format as layout
from simcoll.blackbox.header import Header, counted, unpack_header
from simcoll.blackbox.ring_reader import CHUNK, NO_SLOTS, SLOT_DTYPE, Slots, read_ring
from simcoll.blackbox.table import KnownEntries, TableEntries, in_order, is_blank, is_whole, read_entries
from simcoll.core.io import open_at_once, opened_record, written_until
from simcoll.core.native import native
from simcoll.core.record import UNKNOWN_SOURCE, Event, Group, Record, Source, State
from simcoll.core.steps import StepMarks, ended_event
from simcoll.core.trace import SlotTimes, calls_digest, record_at
from simcoll.errors import UnreadableError
from simcoll.spec.call import Call

_GROUP_DTYPE = np.dtype([(name, layout.NUMPY_CODES[code]) for name, code in layout.GROUP_FIELDS])
_NO_ROWS = np.zeros(0, _GROUP_DTYPE)
_PIECE = 64 << 10
"""Bytes of the table of entries that are read at a time; a piece of nothing but zeros is its end."""
_ALL = 0xFFFFFFFF
_STATES_ALL = frozenset[str]()
"""What a black box leaves unknown of a call: nothing. It is asked for often, of thousands of ranks."""


# Not frozen, as what is made for each of thousands of ranks: that takes several times as long.
@dataclass(slots=True, eq=False)
class BlackBox:
    """One rank's black box, read.

    ``slots`` holds the records oldest first, :data:`SLOT_DTYPE`; their fields ``group``, ``signature`` and ``source``
    index the sequences of these names. ``captured`` are those of calls that CUDA graphs captured, which did not run and
    stand in no group's sequence (theirs is that of the last call before).
    ``dropped`` (``dropped_p2p``) gives, for a group's index, the last sequence
    number (p2p sequence number) that the file no longer holds. ``problems`` lists the damage in words. Times are
    nanoseconds of the wall clock; ``closed_ns`` is 0 where the rank did not end by itself, ``dumped_ns`` where the file
    is no copy. ``run`` and ``attempt`` are the job's id, as its launcher gives it, and its restart count. ``alike`` is
    the :func:`~simcoll.core.trace.calls_digest` of the slots, nothing in the box of a :class:`BoxTail`; ``times`` are
    theirs, where the reader has seen them.
    """

    path: str
    rank: int
    world_size: int
    mode: str
    host: str
    pid: int
    run: str
    attempt: int
    created_ns: int
    closed_ns: int
    dumped_ns: int
    groups: Sequence[Group]
    signatures: Sequence[Call]
    sources: Sequence[Source]
    events: Sequence[Event]
    dropped: Mapping[int, int]
    dropped_p2p: Mapping[int, int]
    slots: Slots
    captured: Slots
    problems: Sequence[str]
    about: Mapping[str, object]
    alike: bytes = b""
    times: SlotTimes | None = None

    @property
    def unknown(self) -> frozenset[str]:
        """The fields of a call that it never states: none."""
        return _STATES_ALL

    @property
    def seen_ns(self) -> int:
        """The time up to which it records the rank: its end, if it ended by itself, or when the file was copied."""
        return self.closed_ns or self.dumped_ns

    def record(self, row: int) -> Record:
        """The record in a row of ``slots``; raises ValueError where the row points outside the file's tables."""
        found = record_at(self, row)
        if found is None:
            raise ValueError(f"{self.path}: row {row} points outside the tables of groups and calls")
        return found


def read_black_box(path: str | Path, known: KnownEntries | None = None) -> BlackBox:
    """Read a black box, finished, cut off, or still being written.

    ``known`` is for reading many files: groups, signatures and lines that they have in common are one object each.
    Raises :class:`UnreadableError` where there is no black box of this format to read, and nothing else.
    """
    name = str(path)
    with opened_record(name, "a black box") as fd:
        return read_open_box(fd, name, os.pread(fd, layout.PAGE, 0), known)


@dataclass(frozen=True, slots=True)
class BoxActivity:
    """The last write into a black box: the newest record's index, and the time of its last change (wall clock, ns).

    ``device_ns`` is the last time at which a device began or ended a call, as far as that is written down; 0 where it
    runs none.
    """

    index: int
    changed_ns: int
    device_ns: int = 0


def last_activity(path: str | Path) -> BoxActivity | None:
    """Returns the newest index and change time without decoding records; None if no black box can be read."""
    try:
        with open_at_once(Path(path)) as file:
            header = unpack_header(file.read(layout.PAGE), str(path))
            # A writer that replaces the file leaves this one as it was: a mapping of it stays valid.
            shape = (header.slot_count,)
            ring = np.memmap(file, SLOT_DTYPE, "r", offset=header.ring_offset, shape=shape)
    except (OSError, ValueError, UnreadableError):
        return None
    times = [int(ring[name].max()) for name in ("scheduled_ns", "started_ns", "finished_ns")]
    return BoxActivity(int(ring["index"].max()), max(times), _device_ns(ring))


def _device_ns(ring: Slots) -> int:
    timed = ring[(ring["flags"] & layout.ON_DEVICE) != 0]
    if not (timed["state"] == State.STARTED).any():
        return 0
    return max(int(timed["started_ns"].max()), int(timed["finished_ns"].max()))


def read_open_box(fd: int, name: str, page: bytes, known: KnownEntries | None = None) -> BlackBox:
    """Read a black box that is open, of whose file this is the first page; as :func:`read_black_box`, but for errors of
    the system, which are raised as they are.
    """
    known = KnownEntries() if known is None else known
    header = unpack_header(page, name, known)
    # The ring before the table: entries that a live ring refers to were in the table before.
    ring = read_ring(fd, header, known.courses)
    last_gap, newest, course = ring.last_gap, ring.newest, ring.course
    wrapped = newest > header.slot_count
    rows = _read_rows(fd, header) if wrapped else _NO_ROWS
    table = _read_table(fd, header)
    entries = read_entries(table, known)
    calls, lines = known.ordered(entries.signatures), known.ordered(entries.sources, UNKNOWN_SOURCE)
    whole = calls.whole and lines.whole and is_whole(entries.groups)
    counts = len(entries.groups), len(entries.signatures), len(entries.sources)
    if course is not None and not (whole and course.refers_within(*counts)):
        course = None
    slots, last_gap = (ring.slots, last_gap) if course is not None else resolve(ring.slots, entries, last_gap)
    slots, captured = (slots, NO_SLOTS) if course is not None else _of_graphs(slots)
    groups = sorted(entries.groups)
    dropped, dropped_p2p = _dropped(groups, rows) if wrapped else ({}, {})
    if last_gap:
        _forget(slots, last_gap, len(groups), dropped, dropped_p2p)
        slots = slots[slots["index"] > last_gap]
    if wrapped:
        _assume_dropped(slots, _untold(groups, rows, newest - header.slot_count), dropped, dropped_p2p)
    # The table lies behind the ring.
    problems = _problems(header, entries.damaged, last_gap, cut=not table and _is_cut(fd, header))
    return _assemble(
        name,
        header,
        known.together(in_order(entries.groups)),
        calls.together,
        lines.together,
        in_order(entries.events),
        (slots, captured),
        (dropped, dropped_p2p),
        problems,
        calls_digest(slots) if course is None else course.alike,
        read_marks(fd, header),
    )


def read_alike(path: str, known: KnownEntries) -> BlackBox | None:
    """A black box that differs from those read before in nothing but what is each rank's own, in one compiled step.

    None for any other file, and where nothing was compiled: :func:`read_open_box` reads it.
    """
    compiled = native("simcoll.blackbox._reader") if known.courses else None
    found = None if compiled is None else compiled.read(path, known.compiled)
    if found is None:
        return None
    shape, rank, pid, wall, _, *counters, ring, course, groups, calls, lines, events, marks, times = found
    lost, closed, dumped, steps = counted(wall, *counters)
    # The line behind the last is that of calls without one.
    if lost or shape.damaged or not course.refers_within(len(groups), len(calls), len(lines) - 1):
        return None
    tables = known.last[2:] = known.together(groups), known.together(calls), known.together(lines)
    if steps:
        events = (*ended_event(steps, None if marks is None else _marks(marks, steps)), *events)
    about = shape.about
    return BlackBox(
        path,
        rank,
        shape.world_size,
        shape.mode,
        _text(about.get("host")),
        pid,
        _text(about.get("run")),
        shape.attempt,
        wall,
        closed,
        dumped,
        *tables,
        tuple(events),
        {},
        {},
        np.frombuffer(ring, SLOT_DTYPE, course.newest),
        NO_SLOTS,
        (),
        about,
        course.alike,
        SlotTimes(*times),
    )


def _of_graphs(slots: Slots) -> tuple[Slots, Slots]:
    """The records of calls that ran, and those of calls that CUDA graphs captured."""
    captured = (slots["flags"] & layout.CAPTURED) != 0
    return (slots[~captured], slots[captured]) if captured.any() else (slots, NO_SLOTS)


def _is_cut(fd: int, header: Header) -> bool:
    """True if even the beginning of the ring is not there."""
    return os.fstat(fd).st_size < header.ring_offset + min(header.slot_count, CHUNK) * layout.SLOT.size


def _read_rows(fd: int, header: Header) -> npt.NDArray[Any]:
    """The table of groups, which holds the last numbers that a wrapped ring has lost."""
    return np.frombuffer(_whole(os.pread(fd, header.group_count * layout.GROUP.size, layout.PAGE)), _GROUP_DTYPE)


def _read_table(fd: int, header: Header) -> bytes:
    parts, offset = [], header.table_offset
    limit = written_until(fd, offset, offset + layout.TABLE_LIMIT + layout.TABLE_CHUNK) - offset
    if limit <= _PIECE:
        return os.pread(fd, limit, offset)
    while limit > 0 and (part := os.pread(fd, min(limit, _PIECE), offset)):
        parts.append(part)
        offset, limit = offset + len(part), limit - len(part)
        if is_blank(part):
            break
    return b"".join(parts)


def _whole(data: bytes, size: int = layout.GROUP.size) -> bytes:
    return data[: len(data) // size * size]


def resolve(slots: Slots, entries: TableEntries, last_gap: int) -> tuple[Slots, int]:
    """Turn the file's indices into places in the sequences of :class:`BlackBox`; a reference to nothing is a gap."""
    tables = (("group", entries.groups), ("signature", entries.signatures), ("source", entries.sources))
    if all(_refers_to_all_there(slots[column], table) for column, table in tables):
        return slots, last_gap
    group, known_group = _places(slots["group"], sorted(entries.groups))
    signature, known_signature = _places(slots["signature"], sorted(entries.signatures))
    source, known_source = _places(slots["source"], sorted(entries.sources))
    sound = known_group & known_signature
    if not sound.all():
        last_gap = max(last_gap, int(slots["index"][~sound].max()))
    slots["group"], slots["signature"] = group, signature
    # A record whose source line is unknown is kept; its index points past the last source.
    slots["source"] = np.where(known_source, source, len(entries.sources))
    return slots[sound], last_gap


def _refers_to_all_there(wanted: npt.NDArray[Any], known: Mapping[int, object]) -> bool:
    """True if entries are numbered without a gap, as a writer does, and nothing refers beyond them."""
    return int(wanted.max(initial=0)) < len(known) == max(known, default=-1) + 1


def _places(wanted: npt.NDArray[Any], known: list[int]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    keys = np.array(known, dtype=np.uint64)
    if not keys.size:
        return np.zeros(len(wanted), np.uint32), np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(keys, wanted.astype(np.uint64)), len(keys) - 1)
    return places.astype(np.uint32), keys[places] == wanted


_Dropped = dict[int, int]


def _dropped(groups: list[int], rows: npt.NDArray[Any]) -> tuple[_Dropped, _Dropped]:
    known = [(place, rows[index]) for place, index in enumerate(groups) if index < len(rows)]
    return (
        {place: int(row["dropped"]) for place, row in known if row["dropped"]},
        {place: int(row["dropped_p2p"]) for place, row in known if row["dropped_p2p"]},
    )


def _untold(groups: list[int], rows: npt.NDArray[Any], dropped: int) -> list[int]:
    """The places of groups for which the table of groups has no row, or one that does not add up."""
    counts = rows["dropped_records"]
    # A rank may have died between the count of a record and its loss.
    if abs(int(counts.sum(dtype=np.float64)) - dropped) > 1 and len(groups) <= len(rows):
        return [*range(len(groups))]
    odd = rows["dropped"].astype(np.uint64) + rows["dropped_p2p"] != counts
    return [place for place, index in enumerate(groups) if index >= len(rows) or odd[index]]


def _assume_dropped(slots: Slots, untold: list[int], dropped: _Dropped, dropped_p2p: _Dropped) -> None:
    """All calls of these groups that are not in the ring may have been dropped from it."""
    for place in untold:
        mine = slots[slots["group"] == place]
        for field, known in (("sequence", dropped), ("p2p_sequence", dropped_p2p)):
            numbers = mine[field][mine[field] > 0]
            known[place] = int(numbers.min()) - 1 if numbers.size else _ALL


def _forget(slots: Slots, gap: int, groups: int, dropped: _Dropped, dropped_p2p: _Dropped) -> None:
    """Count as dropped the call that may have been in the gap, and all before it.

    It stood before each group's next record; a group without one may have had it as its last.
    """
    for field, known in (("sequence", dropped), ("p2p_sequence", dropped_p2p)):
        counted = (slots["p2p_sequence"] > 0) == (field == "p2p_sequence")
        for group in range(groups):
            mine = slots[counted & (slots["group"] == group)]
            after = mine[field][mine["index"] > gap]
            before = mine[field][mine["index"] < gap]
            last = int(after.min()) - 1 if after.size else int(before.max(initial=0)) + 1
            known[group] = max(known.get(group, 0), last)


def _problems(header: Header, damaged: Sequence[str], last_gap: int, *, cut: bool) -> list[str]:
    problems = [*damaged[:3]]
    if len(damaged) > 3:
        problems.append(f"{len(damaged)} entries of the table are damaged in all")
    if header.damaged:
        problems.append("the description of the process (host, versions) is damaged")
    if header.lost:
        problems.append(f"{header.lost} entries were not written, for want of room on the disk or in the table")
    if last_gap:
        problems.append(f"record {last_gap} cannot be read; the records before it are left out")
    if cut:
        problems.append("the end of the file is missing")
    return problems


def _assemble(
    name: str,
    header: Header,
    groups: Sequence[Group],
    calls: Sequence[Call],
    lines: Sequence[Source],
    events: Sequence[Event],
    slots: tuple[Slots, Slots],
    dropped: tuple[_Dropped, _Dropped],
    problems: list[str],
    alike: bytes,
    marks: StepMarks | None,
) -> BlackBox:
    # In the order of the fields: to name them takes as long as all the rest.
    return BlackBox(
        name,
        header.rank,
        header.world_size,
        header.mode,
        header.host,
        header.pid,
        _text(header.about.get("run")),
        header.attempt,
        header.wall_ns,
        header.closed_ns,
        header.dumped_ns,
        groups,
        calls,
        lines,
        (*ended_event(header.steps, marks), *events),
        *dropped,
        *slots,
        tuple(problems),
        header.about,
        alike,
    )


def read_marks(fd: int, header: Header) -> StepMarks | None:
    """The marks of the steps that the program has marked; None where it marked none, or they are events."""
    if not (header.steps and header.mark_count):
        return None
    return _marks(os.pread(fd, header.mark_count * layout.MARK.size, header.marks_offset), header.steps)


def _marks(data: bytes, ended: int) -> StepMarks | None:
    return StepMarks.at_places(np.frombuffer(_whole(data, layout.MARK.size), np.uint64), ended)


def box_of_newest(name: str, header: Header, entries: TableEntries, slots: Slots, marks: StepMarks | None) -> BlackBox:
    """The newest records of a file as a black box: all before them counts as dropped.

    Nothing is shared with other ranks' boxes: tables that grow would be kept once for each look.
    """
    dropped: _Dropped = {}
    dropped_p2p: _Dropped = {}
    if not len(slots) or int(slots["index"][0]) > 1:
        _assume_dropped(slots, [*range(len(entries.groups))], dropped, dropped_p2p)
    return _assemble(
        name,
        header,
        in_order(entries.groups),
        in_order(entries.signatures),
        (*in_order(entries.sources), UNKNOWN_SOURCE),
        in_order(entries.events),
        (slots, NO_SLOTS),
        (dropped, dropped_p2p),
        [],
        b"",
        marks,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
