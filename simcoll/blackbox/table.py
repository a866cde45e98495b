"""The black box's growing table: appends entries to the file, also while the disk fills up, and reads them back.

Entries are groups, call signatures, source lines and events. They carry their own index and checksum, so that one that
is damaged costs itself alone: reading goes on at the next marker, which cannot occur inside an entry's JSON (it has a
line break, and JSON escapes those).
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from simcoll.blackbox import format as layout
from simcoll.blackbox.format import EntryKind
from simcoll.blackbox.members import KnownMembers, Room
from simcoll.blackbox.ring_reader import Course
from simcoll.core.record import UNKNOWN_SOURCE, Event, Group, Source, frames_from
from simcoll.spec.call import Call

if TYPE_CHECKING:
    from simcoll.blackbox.header import HeaderShape

_RETRY_NS = 1_000_000_000
_HEAD = Struct("<4sII")
_TAIL = Struct("<II")
_PIECE_HEAD = Struct("<IIII")
"""The head of an entry behind its marker."""


class EntryTable:
    """The entries of one black box, for a writer that holds its lock; ``fd`` is closed by :meth:`close`.

    ``start`` is the table's first byte, behind which :data:`~simcoll.blackbox.format.TABLE_CHUNK` bytes are reserved.
    Entries without room are counted in ``lost`` and reported once on stderr; nothing is raised.
    """

    def __init__(self, path: Path, fd: int, start: int) -> None:
        self.lost = 0
        self._path = path
        self._fd = fd
        self._start = self._end = start
        self._reserved = start + layout.TABLE_CHUNK
        self._retry_ns = 0

    def append(
        self, kind: EntryKind, index: int, payload: bytes, *, last_words: bool = False, many: bool = False
    ) -> bool:
        """Write one entry behind the last; False where there is no room. ``last_words`` may use the table's reserve,
        one of ``many`` only the first half of the table.
        """
        if self._fd < 0 or (many and self._end + len(payload) > self._start + layout.TABLE_LIMIT // 2):
            return False
        limit = layout.TABLE_LIMIT - (0 if last_words else layout.TABLE_RESERVE)
        entry = pack_entry(kind, index, payload)
        if len(payload) > layout.ENTRY_LIMIT or self._end + len(entry) > self._start + limit:
            return self._lose("its table of entries is full")
        if time.monotonic_ns() < self._retry_ns:
            return self._lose("no room")
        try:
            self._grow(self._end + len(entry))
            write_all(self._fd, entry, self._end)
        except OSError as error:
            self._retry_ns = time.monotonic_ns() + _RETRY_NS
            return self._lose(error.strerror or str(error))
        self._end += len(entry)
        return True

    def read(self) -> bytes:
        """All entries as they stand in the file; raises OSError."""
        with self._path.open("rb") if self._fd < 0 else os.fdopen(os.dup(self._fd), "rb") as file:
            return os.pread(file.fileno(), self._end - self._start, self._start)

    def flush(self) -> None:
        """Have the disk hold the file; raises OSError."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Give the descriptor back; later entries are not written."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _grow(self, size: int) -> None:
        if size > self._reserved:
            wanted = max(size, self._reserved + layout.TABLE_CHUNK)
            reserve(self._fd, self._reserved, wanted - self._reserved)
            self._reserved = wanted

    def _lose(self, reason: str) -> bool:
        self.lost += 1
        if self.lost == 1:
            consequence = "the job goes on; calls and lines not seen before are counted, no longer written down"
            print(f"simcoll: {self._path}: {reason}; {consequence}", file=sys.stderr)  # noqa: T201
        return False


def encode(document: object) -> bytes:
    """A document as the JSON of an entry; a value that JSON does not know is written as its text."""
    return json.dumps(document, separators=(",", ":"), default=str).encode("ascii")


def pack_entry(kind: EntryKind, index: int, payload: bytes) -> bytes:
    """One entry as it stands in the file, padded to a multiple of four bytes."""
    tail = _TAIL.pack(index, kind) + payload
    entry = _HEAD.pack(layout.ENTRY_MARKER, len(payload), zlib.crc32(tail)) + tail
    return entry + b"\0" * (-len(entry) % 4)


def reserve(fd: int, offset: int, size: int) -> None:
    """Make sure that the disk has blocks for these bytes; raises OSError (ENOSPC, EDQUOT) where it has not."""
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        # Some file systems cannot reserve; zeros that are written have their blocks.
        for start in range(offset, offset + size, 1 << 20):
            write_all(fd, bytes(min(1 << 20, offset + size - start)), start)


@contextmanager
def whole_file(path: Path) -> Iterator[int]:
    """A descriptor of a new file that takes the name ``path`` when the block has ended well; raises OSError.

    The descriptor is then the caller's. The file's name is no other's until then: on a shared file
    system another job's rank may have the same number and process.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        yield fd
        draft.replace(path)
    except BaseException:
        os.close(fd)
        draft.unlink(missing_ok=True)
        raise


def write_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    """``os.pwrite`` until everything is written; raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


_Value = TypeVar("_Value")
_PATIENCE = 64 << 20
"""So many bytes of entries may turn out to be damaged, besides the table's own, before its rest is given up."""
_LEAST = 1 << 10
"""Bytes for which each damaged entry counts at least."""
_ALIKE = re.compile(rb'\{"kind":"(creating|created|exit)","time_ns":(\d{1,19}),"data":(?=\{)')


# Not frozen, as what is made for each of thousands of ranks: that takes several times as long.
@dataclass(slots=True)
class TableEntries:
    """The table's entries, by the index with which slots refer to them. ``damaged`` lists unreadable parts.

    The tables of calls and lines may be those of other files too.
    """

    groups: dict[int, Group] = field(default_factory=dict)
    signatures: dict[int, Call] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    room: Room = field(default_factory=Room)


class CommonData(dict[str, object]):
    """What many ranks state alike, such as the data of an event; as a key it stands for itself."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Together(tuple[_Value, ...]):
    """Calls or lines of a table in order: one object for all files whose tables have the same."""

    __slots__ = ()


@dataclass(slots=True)
class EntryRun:
    """Calls and lines that stand one after the other in a table, sound: their bytes, the first of these, for which a
    table is searched, and what they state.
    """

    data: bytes = b""
    begin: bytes = b""
    noted: int = 0
    signatures: dict[int, Call] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ordered(Generic[_Value]):
    """A table in order, one object for all files that have it; ``whole`` if its entries are numbered without a gap."""

    together: tuple[_Value, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class KnownEntries:
    """What many ranks' files share is parsed once: groups, signatures and source lines by their entries' JSON.

    ``pieces`` has sound entries of these kinds by their bytes behind the marker, with kind and index; ``run`` are those
    of one file that most others may have in the same order. ``compiled`` is what ``_reader.c`` takes of it all,
    ``last`` its own.
    """

    groups: dict[bytes, Group] = field(default_factory=dict)
    members: KnownMembers = field(default_factory=KnownMembers)
    signatures: dict[bytes, Call] = field(default_factory=dict)
    sources: dict[bytes, Source] = field(default_factory=dict)
    makings: dict[bytes, CommonData] = field(default_factory=dict)
    abouts: dict[bytes, CommonData] = field(default_factory=dict)
    shapes: dict[bytes, HeaderShape] = field(default_factory=dict)
    pieces: dict[bytes, tuple[int, int, object]] = field(default_factory=dict)
    run: EntryRun = field(default_factory=EntryRun)
    courses: dict[object, Course] = field(default_factory=dict)
    last: list[object] = field(default_factory=lambda: [b"", [], (), (), ()])
    compiled: tuple[object, ...] = field(init=False)
    _together: dict[tuple[int, ...], Together[object]] = field(default_factory=dict)
    _ordered: dict[int, tuple[object, Ordered[object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shared = self.shapes, self.courses, self.pieces, self.makings, Event, UNKNOWN_SOURCE, self.last
        object.__setattr__(self, "compiled", shared)

    def together(self, values: Sequence[_Value]) -> tuple[_Value, ...]:
        """Values as the tuple that earlier files with the same objects have."""
        if type(values) is Together:
            return values
        # An address identifies a value only while it is kept, as it is here.
        key = tuple(map(id, values))
        together = self._together.get(key)
        if together is None:
            together = self._together[key] = Together(values)
        return cast("tuple[_Value, ...]", together)

    def ordered(self, values: dict[int, _Value], *more: _Value) -> Ordered[_Value]:
        """Values by their index, and more behind them, as the tuple that earlier files with the same objects have."""
        if (shared := self._ordered.get(id(values))) is not None:
            return cast("Ordered[_Value]", shared[1])
        ordered = Ordered(self.together((*in_order(values), *more)), is_whole(values))
        if values is self.run.signatures or values is self.run.sources:
            self._ordered[id(values)] = values, cast("Ordered[object]", ordered)
        return ordered


def in_order(values: Mapping[int, _Value]) -> tuple[_Value, ...]:
    """Values by their index, which a writer gives them in their order."""
    indices = [*values]
    return tuple(values.values() if indices == [*range(len(indices))] else [values[index] for index in sorted(indices)])


def is_whole(values: Mapping[int, object]) -> bool:
    """True if entries are numbered without a gap, as a writer does."""
    return len(values) == max(values, default=-1) + 1


_GROUP, _SIGNATURE, _SOURCE, _EVENT = (
    int(kind) for kind in (EntryKind.GROUP, EntryKind.SIGNATURE, EntryKind.SOURCE, EntryKind.EVENT)
)
"""As numbers: Python 3.11 takes as long for a member of an enumeration as for the entry."""

_RUN = 4
"""Entries of a run at least: for fewer the search costs more than it saves."""

_BEGIN = 32
"""Bytes of a run that are searched for; their checksum tells them from others."""

_TRIES = 16
"""So many files at most are looked at for a run: where their tables have none in common, that is time lost."""


def read_entries(table: bytes, known: KnownEntries | None = None) -> TableEntries:
    """Read a table from its first byte to its last entry; never raises, whatever the bytes are.

    ``known`` has the entries of other files' tables, and takes in those of this one.
    """
    known = KnownEntries() if known is None else known
    if (entries := _read_sound(table, known)) is not None:
        return entries
    entries = TableEntries()
    for kind, index, payload in _sound_entries(table, entries.damaged):
        try:
            _keep(entries, known, kind, index, payload)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            entries.damaged.append(f"entry {index} of kind {kind} is malformed ({type(error).__name__})")
    return entries


def _read_sound(table: bytes, known: KnownEntries) -> TableEntries | None:
    """The entries of a table none of which is damaged; None for any other. Each sound entry is checked once for all
    files that have it, byte for byte.
    """
    table = table.rstrip(b"\0")
    entries = TableEntries()
    run = known.run
    # To search for all of it would take longer than to read it.
    begin = table.find(run.begin) if run.data else -1
    end = begin + len(run.data)
    if begin < 0 or not (table.startswith(run.data, begin) and table.startswith(layout.ENTRY_MARKER, end)):
        if not _take_pieces(table, entries, known):
            return None
        _note_run(table, known)
        return entries
    # The entries of a run end with its bytes where another one follows.
    if not _take_pieces(table[:begin], entries, known, more=True):
        return None
    behind = TableEntries(entries.groups, events=entries.events, damaged=entries.damaged, room=entries.room)
    if not _take_pieces(table[end:], behind, known):
        return None
    # Of two entries with one index the first counts.
    entries.signatures = _joined(entries.signatures, run.signatures, behind.signatures)
    entries.sources = _joined(entries.sources, run.sources, behind.sources)
    return entries


def _joined(first: dict[int, _Value], run: dict[int, _Value], last: dict[int, _Value]) -> dict[int, _Value]:
    if not first and not last:
        return run
    joined = {**first, **run, **last}
    return joined if len(joined) == len(first) + len(run) + len(last) else {**last, **run, **first}


def _take_pieces(table: bytes, entries: TableEntries, known: KnownEntries, *, more: bool = False) -> bool:
    """Take in the entries of a table, or of its beginning with ``more`` behind it; False where one is damaged."""
    first, *pieces = table.split(layout.ENTRY_MARKER)
    if first:
        return False
    kept: dict[int, dict[int, Any]] = {
        _GROUP: entries.groups,
        _SIGNATURE: entries.signatures,
        _SOURCE: entries.sources,
    }
    last = len(pieces) - (not more)
    for place, piece in enumerate(pieces):
        found = known.pieces.get(piece)
        if found is None:
            found = _sound_piece(piece, entries, known, last=place == last)
            if found is None:
                return False
        else:
            kept[found[0]].setdefault(found[1], found[2])
    return True


def _sound_piece(
    piece: bytes, entries: TableEntries, known: KnownEntries, *, last: bool
) -> tuple[int, int, object] | None:
    """Take in an entry by its bytes behind the marker; None where it is damaged."""
    if len(piece) < _PIECE_HEAD.size:
        return None
    size, crc, index, kind = _PIECE_HEAD.unpack_from(piece)
    end = _PIECE_HEAD.size + size
    payload, padding = piece[_PIECE_HEAD.size : end], piece[end:]
    whole = len(payload) == size <= layout.ENTRY_LIMIT and (last or len(padding) == -size % 4)
    if not whole or padding.strip(b"\0") or zlib.crc32(piece[8:end]) != crc:
        return None
    try:
        value = _keep(entries, known, kind, index, payload)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if kind != _EVENT:
        known.pieces[piece] = kind, index, value
    return kind, index, value


def _note_run(table: bytes, known: KnownEntries) -> None:
    """Keep the longest run of calls and lines, for the tables of other files to be searched for it as a whole."""
    run, known.run.noted = known.run, known.run.noted + 1
    if run.noted > _TRIES:
        return
    # Zeros behind the last entry were cut off.
    pieces = table.split(layout.ENTRY_MARKER)[1:-1]
    best, start = (0, 0), 0
    for place, piece in enumerate([*pieces, b""]):
        if known.pieces.get(piece, (_GROUP,))[0] == _GROUP:
            best = max(best, (place - start, start))
            start = place + 1
    length, start = best
    if length < _RUN:
        return
    run.data = b"".join(layout.ENTRY_MARKER + piece for piece in pieces[start : start + length])
    run.begin = run.data[:_BEGIN]
    # Other files may have the tables of the run before.
    run.signatures, run.sources = {}, {}
    by_kind = cast("dict[int, dict[int, object]]", {_SIGNATURE: run.signatures, _SOURCE: run.sources})
    for piece in pieces[start : start + length]:
        kind, index, value = known.pieces[piece]
        by_kind[kind].setdefault(index, value)


def read_further(table: bytes, entries: TableEntries, known: KnownEntries) -> int:
    """Take the entries that a writer has appended into ``entries``; returns how many bytes of ``table`` they take.

    An entry that is still being written stays for the next time. One that is damaged, which shows by a later one, is
    passed over.
    """
    position = 0
    while position <= len(table) - layout.ENTRY.size:
        marker, size, crc, index, kind = layout.ENTRY.unpack_from(table, position)
        end = position + layout.ENTRY.size + size
        sound = marker == layout.ENTRY_MARKER and size <= layout.ENTRY_LIMIT and end <= len(table)
        if sound and zlib.crc32(memoryview(table)[position + layout.ENTRY_CRC_START : end]) == crc:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                _keep(entries, known, kind, index, table[position + layout.ENTRY.size : end])
            position = -(-end // 4) * 4
        elif (following := table.find(layout.ENTRY_MARKER, position + 1)) < 0:
            break
        else:
            position = following
    return min(position, len(table))


def _sound_entries(table: bytes, damaged: list[str]) -> Iterator[tuple[int, int, bytes]]:
    """The entries whose checksum is right. ``budget`` bounds the cost of a hostile file."""
    position, budget, written = 0, 4 * len(table) + _PATIENCE, len(table.rstrip(b"\0"))
    while 0 <= position <= len(table) - layout.ENTRY.size and budget > 0:
        marker, size, crc, index, kind = layout.ENTRY.unpack_from(table, position)
        end = position + layout.ENTRY.size + size
        if marker == layout.ENTRY_MARKER and size <= layout.ENTRY_LIMIT and end <= len(table):
            if zlib.crc32(memoryview(table)[position + layout.ENTRY_CRC_START : end]) == crc:
                yield kind, index, table[position + layout.ENTRY.size : end]
                position = -(-end // 4) * 4
                continue
            budget -= size
        if position >= written:
            return
        following = table.find(layout.ENTRY_MARKER, position + 1)
        if marker != b"\0\0\0\0" or following >= 0:
            damaged.append(f"the entry at byte {position} of the table is damaged")
            budget -= _LEAST
        position = following


def is_blank(data: bytes) -> bool:
    """True if all bytes are zero."""
    return data == bytes(len(data))


def _keep(entries: TableEntries, known: KnownEntries, kind: int, index: int, payload: bytes) -> object:
    """Take in an entry, unless one with its index was there before; returns what it states in any case."""
    if kind == _EVENT:
        return _first(entries.events, index, _made_alike(known, payload) or _event(json.loads(payload)))
    if kind == _GROUP:
        read = partial(_group, members=known.members, room=entries.room)
        return _first(entries.groups, index, _once(known.groups, payload, read))
    if kind == _SIGNATURE:
        return _first(entries.signatures, index, _once(known.signatures, payload, Call.from_json))
    if kind == _SOURCE:
        return _first(entries.sources, index, _once(known.sources, payload, _source))
    raise ValueError(kind)


def _first(values: dict[int, _Value], index: int, value: _Value) -> _Value:
    values.setdefault(index, value)
    return value


def _made_alike(known: KnownEntries, payload: bytes) -> Event | None:
    """The making of a group or the end of a rank, which those of a large job record alike but for the time."""
    found = _ALIKE.match(payload)
    if found is None or not payload.endswith(b"}}"):
        return None
    data = known.makings.get(payload[found.end() : -1])
    if data is None:
        data = known.makings[payload[found.end() : -1]] = CommonData(_event(json.loads(payload)).data)
    return Event(found[1].decode(), int(found[2]), data)


def _once(known: dict[bytes, _Value], payload: bytes, read: Callable[[object], _Value]) -> _Value:
    value = known.get(payload)
    if value is None:
        value = known[payload] = read(json.loads(payload))
    return value


def _group(document: object, members: KnownMembers, room: Room) -> Group:
    values = _object(document)
    return Group(_text(values, "name"), _text(values, "description"), members.read(values["ranks"], room))


def _source(document: object) -> Source:
    values = _object(document)
    line = _text(values, "file"), _integer(values, "line"), _text(values, "function"), _text(values, "code")
    return Source(*line, frames_from(values.get("callers")), frames_from(values.get("through")))


def _event(document: object) -> Event:
    values = _object(document)
    return Event(_text(values, "kind"), _integer(values, "time_ns"), _object(values["data"]))


def _object(document: object) -> dict[str, object]:
    if not isinstance(document, dict):
        raise TypeError("object")
    return document


def _text(values: dict[str, object], name: str) -> str:
    value = values[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _integer(values: dict[str, object], name: str) -> int:
    value = values[name]
    if type(value) is not int:
        raise TypeError(name)
    return value
