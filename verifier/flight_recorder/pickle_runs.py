"""Reads the entries of a pickled dump that look like one before, many at a time.

A dump holds a few hundred kinds of entries: all that tells two of a kind apart are a few numbers, at the same places.
So each entry that was read opcode by opcode becomes a *mould*: its bytes, and where in them the numbers stand. Every
stretch of the file that has these bytes at all other places is such an entry, and its numbers are read as columns.
That holds whatever the file contains: a stretch that equals a mould where it must is the same opcodes in one order.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcoll.verifier.flight_recorder.entries import ENTRY_LIMIT, NUMBERED, ROW, UNREAD, EntryColumns, Rows
from simcoll.verifier.flight_recorder.pickle_machine import PickleStream
from simcoll.verifier.flight_recorder.pickle_reader import FLOAT, LONG, NUMBERS

_BEFORE: Final = 2
"""Entries that are read before the first one that follows a mould."""
_LARGEST: Final = 4096
"""Bytes of the longest entry that becomes a mould."""
_WORK: Final = 64
"""How many times the file may be compared with moulds that fit nothing."""
_TYPES: Final = {ord("K"): "u1", ord("M"): "<u2", ord("J"): "<i4", LONG: "<i8"}

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


class Follower:
    """Takes entries from a stream, and reads on by itself as far as it knows their kinds."""

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
        # An entry that memoizes something is like no other.
        if not sound or stream.fresh or stream.at - stream.began > _LARGEST:
            return
        if self._stretches is None:
            if self._seen < self._before:
                return
            self._stretches = Stretches(self._data, stream.began, _key_size(self._data, stream.began))
        self._stretches.learn(stream, self._columns)
        rows, stream.at = self._stretches.follow(stream.at)
        if len(rows):
            self._columns.add(rows)


def _key_size(data: bytes, at: int) -> int:
    """How many bytes tell an entry's beginning: the dict, the mark, the number of its first key."""
    return {ord("h"): 4, ord("j"): 7}.get(data[at + 2], 0)


class Stretches:
    """The parts of a file that may be entries, from one beginning to the next, and those that follow a mould."""

    def __init__(self, data: bytes, at: int, size: int) -> None:
        starts: list[int] = []
        if size:
            # The byte before a beginning is the end of the entry before it.
            pattern = re.compile(re.escape(b"u" + data[at : at + size]))
            starts = [found.start() + 1 for found in islice(pattern.finditer(data, at + size), ENTRY_LIMIT)]
        self._data = np.frombuffer(data, np.uint8)
        self._starts = np.array(starts, np.int64)
        self._rows = np.zeros(max(len(starts) - 1, 0), ROW)
        self._known = np.zeros(len(starts), np.bool_)
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
        if not len(places):
            return
        rows = np.repeat(columns.last(), len(places))
        for column, offset, code in mould.numbers:
            rows[column] = mould.values(found, offset, code)
        self._rows[places] = rows
        self._known[places] = True

    def follow(self, at: int) -> tuple[Rows, int]:
        """The entries from a place of the file on whose kind is known, and where they end."""
        first = int(np.searchsorted(self._starts, at))
        if first >= len(self._starts) or self._starts[first] != at:
            return self._rows[:0], at
        # The last stretch has no end, so that its kind is never known.
        last = first + int(np.argmin(self._known[first:]))
        return self._rows[first:last], int(self._starts[last])


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
    """One entry's bytes, and which of them belong to numbers that differ from entry to entry.

    ``numbers`` gives column, offset and opcode of those that are read.
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
        self.words: Words = padded.view(np.uint64)
        self.mask: Words = mask.view(np.uint64)

    @staticmethod
    def values(found: Bytes, offset: int, code: int) -> npt.NDArray[Any]:
        """One column of numbers out of the bytes of many entries."""
        return np.ascontiguousarray(found[:, offset : offset + _width(code)]).view(_TYPES[code])[:, 0]


def _width(code: int) -> int:
    return 8 if code in (LONG, FLOAT) else NUMBERS[code][0]
