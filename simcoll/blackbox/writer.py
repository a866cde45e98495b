"""The black box's writer: a rank's calls, in a file that outlives the rank.

Records go into a shared mapping of the file, which belongs to the kernel: SIGKILL, SIGABRT and a segmentation fault do
not lose them. The space is reserved when the file is created, because a store into a mapping for which the disk has no
block ends the process with SIGBUS.

Threads: every method may be called from any thread, and from a signal handler (the lock is re-entrant). Processes: a
forked child inherits the object but not the right to write; each call is a no-op there.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import TypeVar

from simcoll.blackbox import format as layout
from simcoll.blackbox.box import Slot
from simcoll.blackbox.format import EntryKind
from simcoll.blackbox.header import pack_header
from simcoll.blackbox.members import members_document
from simcoll.blackbox.ring import ring_in
from simcoll.blackbox.table import EntryTable, encode, reserve, whole_file, write_all
from simcoll.core.clock import now_ns
from simcoll.core.rank_local import ProcessOwned
from simcoll.core.record import Group, Source, frames_document
from simcoll.core.steps import MARKS, is_marked, mark_place
from simcoll.spec.call import Call

_Interned = TypeVar("_Interned")
_TIME = Struct("<Q")
_DUMPED = layout.COUNTERS_OFFSET + layout.offset_of(layout.COUNTER_FIELDS, "dumped_ns")
_STEPS = layout.COUNTERS_OFFSET + layout.offset_of(layout.COUNTER_FIELDS, "steps")
_MARKS = layout.marks_offset(layout.GROUP_ROWS)
_LAST_WORDS = frozenset({"exception", "missing", "exit"})
_MANY = frozenset({"values", "state", "batch", "trained", "promised"})
"""Events that calls and steps have: they must not take the room of all others."""

_CLIPPED_TEXT = 10_000
_HELD = 1 << 14
"""Lines that are known by their identity."""
_EXPECTED = f"a whole number from {layout.MIN_SLOTS} to {layout.MAX_SLOTS}"


class BlackBoxError(OSError):
    """A black box cannot be created; ``filename`` names it, ``strerror`` says why and what to do."""


class BlackBoxWriter(ProcessOwned):
    """One rank's black box, open for writing.

    ``records`` is the number of slots in the ring (default: the environment's SIMCOLL_RECORDS, else 65,536, 64 bytes
    each). An older file at ``path`` is replaced, never written into: another process may still have it mapped. Raises
    :class:`BlackBoxError` where the file cannot be created or the disk has no room for it.
    """

    def __init__(self, path: str | Path, *, rank: int, world_size: int, mode: str, records: int | None = None) -> None:
        self.path = Path(path)
        self._slots = slots_wanted() if records is None else _checked(records)
        self._map, self._table = self._create(pack_header(rank, world_size, mode, self._slots))
        self._ring = ring = ring_in(self._map, self._slots, layout.GROUP_ROWS)
        # The ring's own methods, without another call in between.
        self.write, self.advance, self.mark, self.waits = ring.write, ring.advance, ring.mark, ring.waits
        self.ran_on_device, self.ended_on_device = ring.ran_on_device, ring.ended_on_device
        self._lock = threading.RLock()
        self._groups = 0
        self._events = 0
        self._signatures: dict[Call, int] = {}
        self._sources: dict[tuple[Source, ...], int] = {}
        self._known: dict[int, tuple[Source, int]] = {}
        self._steps = 0
        self._open = True
        super().__init__()

    def group(self, group: Group) -> int:
        """The index of a group that was just created; each call writes a new entry.

        A group that is destroyed and created again under its old name is another group: its sequence starts anew.
        """
        if not self._open:
            return layout.ABSENT
        with self._lock:
            index = self._groups
            if not self._append(EntryKind.GROUP, index, encode(_group_json(group))):
                return layout.ABSENT
            self._groups = index + 1
            return index

    def signature(self, call: Call) -> int:
        """The index of a call's signature, written down when it is first seen."""
        index = self._signatures.get(call)
        return index if index is not None else self._intern(EntryKind.SIGNATURE, self._signatures, call, Call.to_json)

    def source(self, source: Source) -> int:
        """The index of a source line and its callers, written down when it is first seen."""
        # By identity: hashing a stack would cost more than all else here. What is held keeps its identity.
        known = self._known.get(id(source))
        if known is not None:
            return known[1]
        stack = source.stack
        index = self._intern(EntryKind.SOURCE, self._sources, stack, lambda _: _source_json(source))
        if index != layout.ABSENT and len(self._known) < _HELD:
            self._known[id(source)] = source, index
        return index

    def schedule(self, slot: Slot) -> int:
        """Write down that a call was made; the ticket that comes back names the record in later calls."""
        return self.write(
            slot.group, slot.sequence, slot.signature, slot.source, slot.p2p_sequence, slot.state, slot.flags
        )

    def resign(self, ticket: int, signature: int) -> None:
        """Give the record another signature, with fields that were not known when the call was made, unless the ring
        has passed it since, or the signature found no room.
        """
        if signature != layout.ABSENT:
            self._ring.resign(ticket, signature)

    def event(self, kind: str, **data: object) -> None:
        """Write down something else that happened: see :class:`simcoll.core.record.Event` for the kinds and their data.

        Values are JSON's; any other value is written as its text. A text that is too long is clipped.
        """
        if not self._open:
            return
        document = {"kind": kind, "time_ns": now_ns(), "data": data}
        payload = encode(document)
        if len(payload) > layout.ENTRY_LIMIT:
            document["data"] = {name: str(value)[:_CLIPPED_TEXT] for name, value in data.items()}
            payload = encode(document)
        with self._lock:
            last_words, many = kind in _LAST_WORDS, kind in _MANY
            if self._append(EntryKind.EVENT, self._events, payload, last_words=last_words, many=many):
                self._events += 1

    def step(self) -> None:
        """Write down that a training step has ended: its number always, its time for some (:func:`is_marked`)."""
        if not self._open:
            return
        with self._lock:
            self._steps += 1
            _TIME.pack_into(self._map, _STEPS, self._steps)
            if is_marked(self._steps) and (place := mark_place(self._steps)) < MARKS:
                _TIME.pack_into(self._map, _MARKS + place * layout.MARK.size, now_ns())

    def close(self) -> None:
        """Record that the rank ended by itself, and write no more. The mapping lives as long as the object."""
        if not self._open:
            return
        with self._lock:
            self._open = False
            self._ring.close()
            layout.COUNTERS.pack_into(self._map, layout.COUNTERS_OFFSET, self._table.lost, now_ns(), 0, self._steps)
            self._table.close()

    def save(self, path: Path) -> None:
        """Have ``path`` hold all that was written so far; raises OSError.

        The box's own file is flushed, which hosts that share its file system may need; any other is a copy as of this
        moment, which is there whole or not at all.
        """
        if _identity(path) == self._file:
            self._map.flush()
            self._table.flush()
            return
        with self._lock:
            filled = layout.ring_offset(layout.GROUP_ROWS) + min(self._ring.next, self._slots) * layout.SLOT.size
            start = bytearray(self._map[:filled])
            entries = self._table.read()
        _TIME.pack_into(start, _DUMPED, now_ns())
        with whole_file(path) as fd:
            write_all(fd, start, 0)
            write_all(fd, entries, layout.ring_offset(layout.GROUP_ROWS) + self._slots * layout.SLOT.size)
        os.close(fd)

    def forked(self) -> None:
        """Write no more: the box is the parent's."""
        self._open = False
        self._ring.close()
        self._lock = threading.RLock()

    def _create(self, header: bytes) -> tuple[mmap.mmap, EntryTable]:
        """The file under its final name with all its space reserved, or nothing at all."""
        start = layout.ring_offset(layout.GROUP_ROWS) + self._slots * layout.SLOT.size
        try:
            with whole_file(self.path) as fd:
                reserve(fd, 0, start + layout.TABLE_CHUNK)
                write_all(fd, header, 0)
                mapping = mmap.mmap(fd, start)
                self._file = _identity(fd)
        except OSError as error:
            need = f"{layout.initial_size(self._slots) / (1 << 20):.1f} MiB"
            advice = f"a black box takes {need}: choose another folder, free space, or lower SIMCOLL_RECORDS"
            raise BlackBoxError(error.errno, f"{error.strerror or error} ({advice})", str(self.path)) from error
        return mapping, EntryTable(self.path, fd, start)

    def _intern(
        self,
        kind: EntryKind,
        known: dict[_Interned, int],
        value: _Interned,
        to_json: Callable[[_Interned], object],
    ) -> int:
        if not self._open:
            return layout.ABSENT
        with self._lock:
            index = known.get(value)
            if index is None:
                index = len(known)
                if not self._append(kind, index, encode(to_json(value))):
                    return layout.ABSENT
                known[value] = index
            return index

    def _append(
        self, kind: EntryKind, index: int, payload: bytes, *, last_words: bool = False, many: bool = False
    ) -> bool:
        written = self._table.append(kind, index, payload, last_words=last_words, many=many)
        if not written:
            layout.COUNTERS.pack_into(self._map, layout.COUNTERS_OFFSET, self._table.lost, 0, 0, self._steps)
        return written


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Returns a file's device and inode numbers, which identify it under any name; None if it does not exist."""
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def slots_wanted() -> int:
    """The ring's slots by the environment's SIMCOLL_RECORDS; raises :class:`BlackBoxError` on a value out of range."""
    text = os.environ.get("SIMCOLL_RECORDS", "")
    if not text:
        return layout.DEFAULT_SLOTS
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BlackBoxError(errno.EINVAL, f"SIMCOLL_RECORDS={text!r:.80}: expected {_EXPECTED}; correct or unset it")
    return _checked(int(text))


def _checked(records: int) -> int:
    if not layout.MIN_SLOTS <= records <= layout.MAX_SLOTS:
        raise BlackBoxError(errno.EINVAL, f"{records} records in a black box: expected {_EXPECTED} (SIMCOLL_RECORDS)")
    return records


def _group_json(group: Group) -> object:
    return {"name": group.name, "description": group.description, "ranks": members_document(group.ranks)}


def _source_json(source: Source) -> object:
    document: dict[str, object] = {
        "file": source.file,
        "line": source.line,
        "function": source.function,
        "code": source.code,
    }
    for name in ("callers", "through"):
        if frames := getattr(source, name):
            document[name] = frames_document(frames)
    return document
