"""The newest records of all ranks of a running job as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simcoll.blackbox.table import TableEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.core.record import Group
from simcoll.core.trace import SLOT, Slots

_RECENT_RECORDS = 64
_RECENT_NS = 5_000_000_000

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class GroupTable:
    """The process groups of a job, numbered alike for all ranks, and of each rank its own numbers of them.

    A group that is destroyed and made again is another group.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._numbers: dict[tuple[str, tuple[int, ...], int], int] = {}
        self._own: dict[int, tuple[TableEntries, int, Integers]] = {}

    def numbers(self, tail: BoxTail) -> Integers:
        """The job's number of each group in a rank's own table."""
        entries = tail.entries.groups
        known = self._own.get(id(tail))
        if known is not None and known[0] is tail.entries and known[1] == len(entries):
            return known[2]
        lives: dict[tuple[str, tuple[int, ...]], int] = {}
        found = []
        for index in sorted(entries):
            group = entries[index]
            name = group.name, group.ranks
            lives[name] = lives.get(name, 0) + 1
            key = (*name, lives[name])
            number = self._numbers.setdefault(key, len(self.groups))
            if number == len(self.groups):
                self.groups.append(group)
            found.append(number)
        numbers = np.array(found, np.int64)
        self._own[id(tail)] = tail.entries, len(entries), numbers
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The newest records of the ranks in one array, by rank and then from old to new.

    ``slots`` are the records; ``rank`` and ``group`` give each one's rank (its place in ``ranks``) and the job's number
    of its group. ``bounds`` has one more element than ``ranks``: those of rank *i* are ``bounds[i]:bounds[i + 1]``.
    ``whole`` marks the ranks of which nothing older was written.
    """

    ranks: Sequence[int]
    slots: Slots
    rank: Integers
    group: Integers
    bounds: Integers
    whole: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tails: Sequence[BoxTail], table: GroupTable) -> Records:
        """The table of the records that these tails have at hand."""
        parts = [tail.slots for tail in tails]
        lengths = np.array([len(part) for part in parts], np.int64)
        slots = np.concatenate(parts) if parts else np.zeros(0, SLOT)
        numbers = [table.numbers(tail) for tail in tails]
        starts = np.concatenate([[0], np.cumsum([len(one) for one in numbers])])[:-1].astype(np.int64)
        rank = np.repeat(np.arange(len(tails)), lengths)
        own = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
        indices: Integers = slots["group"].astype(np.int64)
        group = own[starts[rank] + indices] if len(slots) else np.zeros(0, np.int64)
        whole = np.array([not len(part) or int(part["index"][0]) == 1 for part in parts], np.bool_)
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ranks = [-1 if tail.header is None else tail.header.rank for tail in tails]
        return cls(ranks, slots, rank, group, bounds, whole)

    def recent(self) -> Records:
        """Of each rank the records of the last 5 seconds, and at least its newest 64."""
        lengths = np.diff(self.bounds)
        if int(lengths.max(initial=0)) <= _RECENT_RECORDS:
            return self
        made = self.slots["scheduled_ns"].astype(np.int64)
        ends = self.bounds[1:][self.rank]
        kept = (made >= made[ends - 1] - _RECENT_NS) | (np.arange(len(made)) >= ends - _RECENT_RECORDS)
        rank = self.rank[kept]
        bounds = np.concatenate([[0], np.cumsum(np.bincount(rank, minlength=len(lengths)))]).astype(np.int64)
        return replace(self, slots=self.slots[kept], rank=rank, group=self.group[kept], bounds=bounds)

    def changed_ns(self) -> int:
        """The time of the newest change in any record, by the wall clock of its rank; 0 where there is none."""
        times = (self.slots[name].max(initial=0) for name in ("scheduled_ns", "started_ns", "finished_ns"))
        return int(max(times))

    def longest_pause(self) -> float:
        """The longest time for which the job can have stood still before, in seconds; 0 where no rank made two calls.

        That is the pause between two calls of the rank that paused shortest: while the job stands, every rank does.
        Time of which a rank has no record counts as a pause of it.
        """
        made = self.slots["scheduled_ns"].astype(np.int64)
        has = np.flatnonzero(np.diff(self.bounds))
        if not len(has):
            return 0.0
        apart = np.diff(made, prepend=made[:1])
        apart[self.bounds[has]] = 0
        longest = np.maximum.reduceat(apart, self.bounds[has])
        span = made[self.bounds[has + 1] - 1] - made[self.bounds[has]]
        return float(np.maximum(longest, span.max() - span).min()) / 1e9
