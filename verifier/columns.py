"""The same-call check over whole traces, column by column.

Each record gets the word of its call (:mod:`simcoll.verifier.words`; one computation per distinct call and group
rank). Where all ranks of a group have recorded a position, it holds if the words add up to zero modulo 2^64; where some
have not, if those that have state the same. Only the positions left over are looked at record by record.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.record import UNKNOWN_SOURCE, Group, Record, Source
from simcoll.spec import COLLECTIVES, Kind
from simcoll.verifier.trace import Slots, Trace, record_at
from simcoll.verifier.words import Words

_MASK = (1 << 64) - 1
_BEFORE = 3


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One trace's records of one group, by position: which rows, their words, digests and tokens.

    ``sequences`` is where each stands among the group's collectives, ascending.
    """

    trace: Trace
    group_rank: int
    rows: npt.NDArray[np.intp]
    sequences: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]
    digests: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.int32]

    def record(self, place: int) -> Record | None:
        """The record at one of these places, or None where it cannot be read."""
        return record_at(self.trace, int(self.rows[place])) if 0 <= place < len(self.rows) else None

    def place(self, sequence: int) -> int | None:
        """Where a position's record is, or None where this rank has none."""
        place = int(np.searchsorted(self.sequences, sequence))
        return place if place < len(self.rows) and self.sequences[place] == sequence else None


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """A position at which the words do not prove agreement: the records by group rank, and some of those before it."""

    sequence: int
    records: dict[int, Record]
    before: tuple[Record, ...]
    complete: bool


class GroupColumns:
    """All ranks' collectives of one group (one life of it, where it was destroyed and made again)."""

    def __init__(self, group: Group, words: Words) -> None:
        self.group = group
        self.words = words
        self.parts: list[Part] = []
        self._sequences: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._good: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._complete: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)

    def add(self, part: Part) -> None:
        """Take in one trace's records of this group."""
        self.parts.append(part)

    def check(self) -> int:
        """Add up the words; returns at how many positions all ranks of the group are proved to agree."""
        sequences = np.concatenate([part.sequences for part in self.parts])
        self._sequences, place = np.unique(sequences, return_inverse=True)
        counts = np.bincount(place, minlength=len(self._sequences))
        totals = np.zeros(len(self._sequences), np.uint64)
        np.add.at(totals, place, np.concatenate([part.words for part in self.parts]))
        digests = np.concatenate([part.digests for part in self.parts])
        least, most = np.full(len(totals), _MASK, np.uint64), np.zeros(len(totals), np.uint64)
        np.minimum.at(least, place, digests)
        np.maximum.at(most, place, digests)
        self._complete = counts == len(self.group.ranks)
        alike = (least == most) & (least != 0)
        self._good = np.where(self._complete, totals == 0, alike | (counts == 1))
        return int((self._complete & self._good).sum())

    def suspects(self) -> Iterator[Suspect]:
        """The positions that :meth:`check` did not prove, in order."""
        for place in np.flatnonzero(~self._good):
            sequence = int(self._sequences[place])
            records = self.records(sequence)
            yield Suspect(sequence, records, self.before(sequence, records), bool(self._complete[place]))

    def records(self, sequence: int) -> dict[int, Record]:
        """The records at one position, by group rank."""
        found = {}
        for part in self.parts:
            place = part.place(sequence)
            record = None if place is None else part.record(place)
            if record is not None:
                found[part.group_rank] = record
        return found

    def before(self, sequence: int, ranks: Container[int]) -> tuple[Record, ...]:
        """The last positions before this one that were proved, as one of these group ranks recorded them."""
        earlier = self._sequences[self._good & self._complete & (self._sequences < sequence)][-_BEFORE:]
        part = next((part for part in self.parts if part.group_rank in ranks), None)
        if part is None:
            return ()
        places = np.flatnonzero(np.isin(part.sequences, earlier))
        return tuple(record for place in places if (record := part.record(int(place))) is not None)

    def last_ns(self) -> int:
        """When the last of all these calls was made or ended (wall clock, nanoseconds)."""
        times = [part.trace.slots[name][part.rows] for part in self.parts for name in ("scheduled_ns", "finished_ns")]
        return max((int(column.max()) for column in times if len(column)), default=0)


def columns_of(traces: Sequence[Trace]) -> list[GroupColumns]:
    """The collectives of every group, from all traces; a group is known by its name, its members and its life."""
    wrapped = {(group.name, group.ranks) for trace in traces for group in _dropped_groups(trace)}
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    words, found = Words(unknown), dict[object, GroupColumns]()
    for trace in traces:
        for index, group in enumerate(trace.groups):
            if trace.rank not in group.ranks:
                continue
            rows = _collective_rows(trace, index)
            lives = _lives(trace.slots["sequence"][rows], from_end=(group.name, group.ranks) in wrapped)
            for life in np.unique(lives):
                columns = found.setdefault((group.name, group.ranks, int(life)), GroupColumns(group, words))
                columns.add(_rows(trace, group, rows[lives == life], words))
    return list(found.values())


def _dropped_groups(trace: Trace) -> list[Group]:
    return [trace.groups[index] for index in trace.dropped if index < len(trace.groups)]


def _collective_rows(trace: Trace, group_index: int) -> npt.NDArray[np.intp]:
    """Rows of one group that are collectives whose call is known."""
    slots: Slots = trace.slots
    specs = [COLLECTIVES.get(call.op) for call in trace.signatures]
    known = np.array([spec is not None and spec.kind is not Kind.POINT_TO_POINT for spec in specs], np.bool_)
    mask = (slots["group"] == group_index) & (slots["p2p_sequence"] == 0) & (slots["signature"] < len(known))
    rows = np.flatnonzero(mask)
    return rows[known[slots["signature"][rows]]] if len(rows) else rows


def _lives(sequences: npt.NDArray[np.uint32], *, from_end: bool) -> npt.NDArray[np.int64]:
    """Which life of the group each record belongs to: a group made anew counts from 1 again.

    Lives count from the first, or backwards from the last where some rank's first records are gone.
    """
    lives: npt.NDArray[np.int64] = np.maximum(np.cumsum(sequences == 1), 0 if from_end else 1).astype(np.int64)
    return lives - lives[-1] if from_end and len(lives) else lives


def _rows(trace: Trace, group: Group, rows: npt.NDArray[np.intp], words: Words) -> Part:
    # Threads may write down their calls a little out of order.
    rows = rows[np.argsort(trace.slots["sequence"][rows], kind="stable")]
    slots = trace.slots[rows]
    group_rank = group.ranks.index(trace.rank)
    calls = slots["signature"].astype(np.uint64) << np.uint64(32) | slots["source"].astype(np.uint64)
    used, place = np.unique(calls, return_inverse=True)
    stated = [words.of(trace.signatures[int(call) >> 32], group_rank, len(group.ranks)) for call in used]
    sources = [_source(trace, int(call) & 0xFFFFFFFF) for call in used]
    return Part(
        trace,
        group_rank,
        rows,
        slots["sequence"].astype(np.int64),
        np.array([word.whole for word in stated], np.uint64)[place],
        np.array([word.digest for word in stated], np.uint64)[place],
        np.array([words.token(word, source) for word, source in zip(stated, sources, strict=True)], np.int32)[place],
    )


def _source(trace: Trace, index: int) -> Source:
    return trace.sources[index] if index < len(trace.sources) else UNKNOWN_SOURCE
