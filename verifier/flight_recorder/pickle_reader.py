"""Reads a Flight Recorder pickle, opcode by opcode, without unpickling: plain containers, texts and numbers only.

No object of any other kind can come of it, no name is looked up, nothing is called. ``pickletools`` in Python's library
describes the opcodes.

Reads the entries of a pickled dump that look like one before, many at a time.

A dump holds a few hundred kinds of entries: two of a kind differ only in a few numbers, at the same places. So each
entry that was read opcode by opcode becomes a *mould*: its bytes, and the places of the numbers in them. Every stretch
of the file that has these bytes at all other places is such an entry, and its numbers are read as columns. That holds
whatever the file contains: a stretch that equals a mould outside its numbers is the same opcodes in one order.
"""

from __future__ import annotations

import re
import struct
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcoll.verifier.flight_recorder.entries import ENTRY_LIMIT, NUMBERED, ROW, UNREAD, EntryColumns, Rows
from simcoll.verifier.flight_recorder.pickle_machine import (
    BYTES_LIMIT,
    CutError,
    Handler,
    PickleStream,
    UnsafeDumpError,
)

NUMBERS: Final = {ord("K"): (1, False), ord("M"): (2, False), ord("J"): (4, True)}
"""The opcodes of small numbers: how many bytes, and whether they have a sign."""
LONG: Final = 0x8A
FLOAT: Final = ord("G")
_MEMOIZE: Final = 0x94
_LONG_LIMIT: Final = 16


def read_pickle(stream: PickleStream) -> object:
    """The object that a pickle holds, its entries left out; raises :class:`CutError` and :class:`UnsafeDumpError`."""
    return stream.read(_HANDLERS)


def _small(stream: PickleStream, code: int) -> None:
    size, signed = NUMBERS[code]
    stream.spot(stream.at - 1, code)
    stream.stack.append(int.from_bytes(stream.take(size), "little", signed=signed))


def _long(stream: PickleStream) -> None:
    offset, size = stream.at - 1, stream.take(1)[0]
    if size == 8:
        stream.spot(offset, LONG)
    _push_long(stream, size)


def _push_long(stream: PickleStream, size: int) -> None:
    if size > _LONG_LIMIT:
        raise UnsafeDumpError(f"a number of it has {size} bytes")
    stream.stack.append(int.from_bytes(stream.take(size), "little", signed=True))


def _float(stream: PickleStream) -> None:
    stream.spot(stream.at - 1, FLOAT)
    stream.stack.append(struct.unpack(">d", stream.take(8))[0])


def _text(stream: PickleStream, size: int) -> None:
    if size > BYTES_LIMIT:
        raise CutError if stream.at + size > len(stream.data) else UnsafeDumpError(f"a text of it has {size} bytes")
    stream.bounded()
    stream.stack.append(stream.take(size).decode("utf-8", "replace"))


def _tuple(stream: PickleStream, size: int) -> None:
    stream.open(tuple(stream.above(size)))


def _set_item(stream: PickleStream) -> None:
    key, value = stream.above(2)
    holder = stream.top()
    if not isinstance(holder, dict) or (type(key) is not str and type(key) is not int):
        raise UnsafeDumpError("it sets an item that no dict of a dump has")
    holder[key] = value


def _dict(stream: PickleStream) -> None:
    items = stream.popped()
    stream.open({})
    stream.marks.append(len(stream.stack))
    stream.stack += items
    stream.set_items()


def _integer_line(stream: PickleStream) -> None:
    text = stream.line()
    if text in ("00", "01"):
        stream.stack.append(text == "01")
        return
    try:
        stream.stack.append(int(text.removesuffix("L")[: 2 * _LONG_LIMIT]))
    except ValueError as error:
        raise UnsafeDumpError("a number of it is none") from error


def _float_line(stream: PickleStream) -> None:
    try:
        stream.stack.append(float(stream.line()[: 2 * _LONG_LIMIT]))
    except ValueError as error:
        raise UnsafeDumpError("a number of it is none") from error


def _index_line(stream: PickleStream) -> int:
    text = stream.line()
    if not text.isdecimal() or len(text) > _LONG_LIMIT:
        raise UnsafeDumpError("it refers to what it does not hold")
    return int(text)


def _length(stream: PickleStream, size: int) -> int:
    return int.from_bytes(stream.take(size), "little")


def _append(stream: PickleStream) -> None:
    stream.append_items(stream.above(1))


_HANDLERS: Final[dict[int, Handler]] = {
    code[0]: handler
    for code, handler in (
        (b"h", lambda stream: stream.get(stream.take(1)[0])),
        (b"K", lambda stream: _small(stream, 0x4B)),
        (b"(", PickleStream.mark),
        (b"]", lambda stream: stream.open([])),
        (b"}", PickleStream.open_dict),
        (b"e", lambda stream: stream.append_items(stream.popped())),
        (b"u", PickleStream.set_items),
        (b"M", lambda stream: _small(stream, 0x4D)),
        (b"J", lambda stream: _small(stream, 0x4A)),
        (b"\x8a", _long),
        (b"\x8b", lambda stream: _push_long(stream, _length(stream, 4))),
        (b"j", lambda stream: stream.get(_length(stream, 4))),
        (b"G", _float),
        (b"X", lambda stream: _text(stream, _length(stream, 4))),
        (b"\x8c", lambda stream: _text(stream, _length(stream, 1))),
        (b"\x8d", lambda stream: _text(stream, _length(stream, 8))),
        (b"N", lambda stream: stream.stack.append(None)),
        (b"\x88", lambda stream: stream.stack.append(True)),
        (b"\x89", lambda stream: stream.stack.append(False)),
        (b"q", lambda stream: stream.put(stream.take(1)[0])),
        (b"r", lambda stream: stream.put_long(_length(stream, 4))),
        (b"\x94", PickleStream.memoize),
        (b"a", _append),
        (b"s", _set_item),
        (b")", lambda stream: stream.stack.append(())),
        (b"\x85", lambda stream: _tuple(stream, 1)),
        (b"\x86", lambda stream: _tuple(stream, 2)),
        (b"\x87", lambda stream: _tuple(stream, 3)),
        (b"t", lambda stream: stream.open(tuple(stream.popped()))),
        (b"l", lambda stream: stream.open(stream.popped())),
        (b"d", _dict),
        (b"I", _integer_line),
        (b"L", _integer_line),
        (b"F", _float_line),
        (b"V", lambda stream: stream.stack.append(stream.line())),
        (b"p", lambda stream: stream.put(_index_line(stream))),
        (b"g", lambda stream: stream.get(_index_line(stream))),
        (b"\x80", lambda stream: stream.take(1)),
        (b"\x95", lambda stream: stream.take(8)),
        (b".", PickleStream.stop),
    )
}


_STATES: Final = ord("r")
_UNSTATED: Final = -1 << 40
_BEFORE: Final = 2
"""Entries that are read before the first one that follows a mould."""
_LARGEST: Final = 4096
"""Bytes of the longest entry that becomes a mould."""
_WORK: Final = 64
"""The number of times that the file may be compared with moulds that fit nothing."""
_TYPES: Final = {ord("K"): "u1", ord("M"): "<u2", ord("J"): "<i4", LONG: "<i8"}

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


class Follower:
    """Takes entries from a stream, and reads on by itself while it knows their kinds."""

    def __init__(self, columns: EntryColumns, data: bytes, before: int = _BEFORE) -> None:
        self._columns = columns
        self._data = data
        self._seen = 0
        self._before = before
        self._stretches: Stretches | None = None

    def take(self, entry: dict[object, object], stream: PickleStream) -> None:
        """One entry, and those behind it that are of a known kind."""
        sound = self._columns.take(entry)
        self._seen += 1
        # An entry that states numbers under which it is memoized is like no other.
        if not sound or not stream.usual or stream.at - stream.began > _LARGEST:
            return
        if self._stretches is None:
            if self._seen < self._before:
                return
            self._stretches = Stretches(self._data, stream.at - 1, _beginning(self._data, stream.began))
        self._stretches.learn(stream, self._columns)
        rows, end, memoized = self._stretches.follow(stream.at, stream.free)
        if len(rows):
            stream.skip(end, memoized)
            self._columns.add(rows)


def _beginning(data: bytes, at: int) -> re.Pattern[bytes] | None:
    """The bytes that mark an entry's beginning: the end of the one before, the dict (memoized or not), the mark, its
    first key; None where that is not one that was memoized.
    """
    stated = 4 * (data[at + 1] == _STATES)
    number = at + 2 if stated or data[at + 1] == _MEMOIZE else at + 1
    mark = number + stated
    size = {ord("h"): 3, ord("j"): 6}.get(data[mark + 1], 0)
    opened, key = re.escape(b"u" + data[at:number]), re.escape(data[mark : mark + size])
    return re.compile(opened + b"[\\x00-\\xff]{%d}" % stated + key) if size else None


class Stretches:
    """The parts of a file that may be entries, from one beginning to the next, and those that follow a mould."""

    def __init__(self, data: bytes, at: int, beginning: re.Pattern[bytes] | None) -> None:
        starts: list[int] = []
        if beginning is not None:
            starts = [found.start() + 1 for found in islice(beginning.finditer(data, at), ENTRY_LIMIT)]
        self._data = np.frombuffer(data, np.uint8)
        self._starts = np.array(starts, np.int64)
        self._rows = np.zeros(max(len(starts) - 1, 0), ROW)
        self._known = np.zeros(len(starts), np.bool_)
        self._memoized = np.zeros(len(starts), np.int64)
        self._stated = np.full(len(starts), _UNSTATED, np.int64)
        self._open: dict[int, Shelf] = {}
        lengths = np.diff(self._starts)
        for length in np.unique(lengths[lengths <= _LARGEST]).tolist():
            self._open[length] = Shelf(self._data, self._starts, np.flatnonzero(lengths == length), length)
        self._left = _WORK * max(len(data), 1 << 20)

    def learn(self, stream: PickleStream, columns: EntryColumns) -> None:
        """Read all stretches that are like the entry which the stream has just read."""
        shelf = self._open.get(stream.at - stream.began)
        if shelf is None or not len(shelf.places) or self._left <= 0:
            return
        self._left -= shelf.words.size * 8
        mould = Mould(stream)
        places, found = shelf.take(mould)
        self._left += found.size
        if mould.stated:
            numbers = np.stack([mould.values(found, at, ord("J")) - number for at, number in mould.stated])
            counted = (numbers == numbers[0]).all(axis=0)
            places, found, numbers = places[counted], found[counted], numbers[:, counted]
            self._stated[places] = numbers[0]
        if not len(places):
            return
        rows = np.repeat(columns.last(), len(places))
        for column, offset, code in mould.numbers:
            rows[column] = mould.values(found, offset, code)
        self._rows[places] = rows
        self._known[places] = True
        self._memoized[places] = stream.memoized

    def follow(self, at: int, free: int) -> tuple[Rows, int, int]:
        """The entries from a place on whose kind is known, the place of their end, and how much they memoize.

        Those that state under which numbers do so from the next ``free`` one on.
        """
        first = int(np.searchsorted(self._starts, at))
        if first >= len(self._starts) or self._starts[first] != at:
            return self._rows[:0], at, 0
        # The last stretch has no end, so that its kind is never known.
        last = first + int(np.argmin(self._known[first:]))
        memoized, stated = self._memoized[first:last], self._stated[first:last]
        other = (stated != _UNSTATED) & (stated != free + np.cumsum(memoized) - memoized)
        if other.any():
            last = first + int(other.argmax())
        return self._rows[first:last], int(self._starts[last]), int(self._memoized[first:last].sum())


class Shelf:
    """The stretches of one length whose kind is not known yet: their places, their bytes as whole words."""

    def __init__(self, data: Bytes, starts: npt.NDArray[np.int64], places: npt.NDArray[np.intp], length: int) -> None:
        self.places = places
        self.length = length
        padded = np.zeros((len(places), -(-length // 8) * 8), np.uint8)
        padded[:, :length] = np.lib.stride_tricks.sliding_window_view(data, length)[starts[places]]
        self.words: Words = padded.view(np.uint64)

    def take(self, mould: Mould) -> tuple[npt.NDArray[np.intp], Bytes]:
        """The places and bytes of those that are like a mould; they leave the shelf."""
        like = np.flatnonzero(~((self.words ^ mould.words) & mould.mask).any(axis=1))
        places, found = self.places[like], self.words[like]
        if len(like):
            rest = np.ones(len(self.places), np.bool_)
            rest[like] = False
            self.places, self.words = self.places[rest], self.words[rest]
        return places, found.view(np.uint8)


class Mould:
    """One entry's bytes, and a mask of those that belong to numbers which differ from entry to entry.

    ``numbers`` gives column, offset and opcode of those that are read, ``stated`` offset and place in their order of
    those under which parts are memoized.
    """

    def __init__(self, stream: PickleStream) -> None:
        size = stream.at - stream.began
        padded = np.zeros(-(-size // 8) * 8, np.uint8)
        padded[:size] = np.frombuffer(stream.data, np.uint8, size, stream.began)
        mask = np.zeros(len(padded), np.uint8)
        mask[:size] = 0xFF
        self.numbers: list[tuple[str, int, int]] = []
        for key, (offset, code) in stream.numbers().items():
            if key in NUMBERED or key in UNREAD:
                start = offset - stream.began + (2 if code == LONG else 1)
                mask[start : start + _width(code)] = 0
                if key in NUMBERED and code != FLOAT:
                    self.numbers.append((NUMBERED[key], start, code))
        self.stated = [(offset - stream.began, number) for offset, number in stream.stated]
        for start, _ in self.stated:
            mask[start : start + 4] = 0
        self.words: Words = padded.view(np.uint64)
        self.mask: Words = mask.view(np.uint64)

    @staticmethod
    def values(found: Bytes, offset: int, code: int) -> npt.NDArray[Any]:
        """One column of numbers out of the bytes of many entries."""
        return np.ascontiguousarray(found[:, offset : offset + _width(code)]).view(_TYPES[code])[:, 0]


def _width(code: int) -> int:
    return 8 if code in (LONG, FLOAT) else NUMBERS[code][0]
