"""The newest records of all ranks as one table, and what follows from it: progress of groups, waiting, steps.

How long a rank was inside a collective is measured by its own clock alone: the one that comes last is inside for the
shortest time, so that clocks of hosts need not agree. A rank *waits* in a collective for as long as it was inside
longer than the last one, and the last one is *late* by as much as it was inside shorter than the last but one. Where a
device runs the calls, its times are taken; asynchronous calls without such times are left out, since a host computes
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcoll.blackbox.table import TableEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.core.record import Group, State
from simcoll.core.steps import period_of
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, ON_DEVICE, SLOT, Slots
from simcoll.pricing.rank_program import came_ns

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST_SPAN = 1e-3
"""Seconds below which shares of time say nothing."""

_SEARCHES = 8
"""Ranks at a look of whose calls a period is searched; most ranks have that of another one."""

_MOSTLY = 0.7
"""The share of calls that repeat, for a period of another rank to be a rank's own."""


class GroupTable:
    """The process groups of a job, numbered alike for all ranks, and of each rank its own numbers of them.

    A group that is destroyed and made again is another group.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._numbers: dict[tuple[str, tuple[int, ...], int], int] = {}
        self._of_object: dict[tuple[int, int], int] = {}
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
        group = own[starts[rank] + slots["group"]] if len(slots) else np.zeros(0, np.int64)
        whole = np.array([not len(part) or int(part["index"][0]) == 1 for part in parts], np.bool_)
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ranks = [-1 if tail.header is None else tail.header.rank for tail in tails]
        return cls(ranks, slots, rank, group, bounds, whole)

    def changed_ns(self) -> int:
        """The time of the newest change in any record, by the wall clock of its rank; 0 where there is none."""
        times = (self.slots[name].max(initial=0) for name in ("scheduled_ns", "started_ns", "finished_ns"))
        return int(max(times))

    def longest_pause(self) -> float:
        """The longest time between two calls of one rank, in seconds; 0 where no rank has made two."""
        made = self.slots["scheduled_ns"].astype(np.int64)
        apart = np.diff(made)[self.rank[1:] == self.rank[:-1]] if len(made) > 1 else made[:0]
        return float(apart.max(initial=0)) / 1e9


@dataclass(frozen=True, slots=True, eq=False)
class GroupProgress:
    """The progress of the recorded members of each group (by the job's number) in their collectives.

    One element for each pair of a group and a rank that has a record in it: ``group``, ``rank`` (place in the table),
    ``made`` and ``done``, the sequence numbers of the last collective that was made, and that has ended.
    """

    group: Integers
    rank: Integers
    made: Integers
    done: Integers


def progress_of(records: Records) -> GroupProgress:
    """The progress of all groups."""
    mine = records.slots["p2p_sequence"] == 0
    slots = records.slots[mine]
    width = max(len(records.ranks), 1)
    pairs = records.group[mine] * width + records.rank[mine]
    keys, place = np.unique(pairs, return_inverse=True)
    made, done = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    np.maximum.at(made, place, slots["sequence"].astype(np.int64))
    ended = slots["state"] == State.COMPLETED
    np.maximum.at(done, place[ended], slots["sequence"][ended].astype(np.int64))
    return GroupProgress(keys // width, keys % width, made, done)


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Of each rank: the share of its recent time in which it waited for others, and in which others waited for it.

    ``late`` counts only the time by which the rank was later than every other member. NaN where nothing tells.
    """

    waiting: Floats
    late: Floats


def shares_of(records: Records, sizes: Integers) -> Shares:
    """The shares of time; ``sizes`` are the numbers of members of the job's groups."""
    slots = records.slots
    on_device = (slots["flags"] & ON_DEVICE) != 0
    timed = (slots["p2p_sequence"] == 0) & (slots["state"] == State.COMPLETED)
    timed &= on_device | ((slots["flags"] & ASYNCHRONOUS) == 0)
    rows = np.flatnonzero(timed)
    begun = came_ns(slots).astype(np.int64)
    inside = (slots["finished_ns"].astype(np.int64) - begun)[rows] / 1e9
    order = np.lexsort((inside, slots["sequence"][rows], records.group[rows]))
    rows, inside = rows[order], inside[order]
    group, sequence = records.group[rows], slots["sequence"][rows]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (group[1:] != group[:-1]) | (sequence[1:] != sequence[:-1])
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, len(rows)))
    # Only collectives of which every member's time is at hand tell who came last.
    known = (counts == sizes[group[starts]]) & (counts > 1) if len(starts) else np.zeros(0, np.bool_)
    waited = np.where(np.repeat(known, counts), inside - np.repeat(inside[starts], counts), 0.0)
    total = len(records.ranks)
    waiting = np.bincount(records.rank[rows], waited, total)
    last = starts[known]
    late = np.bincount(records.rank[rows[last]], inside[last + 1] - inside[last], total)
    span = _spans(records)
    told = np.bincount(records.rank[rows], np.repeat(known, counts), total) > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        usable = told & (span >= _LEAST_SPAN)
        shares = (np.where(usable, np.clip(one / span, 0, 1), np.nan) for one in (waiting, late))
        return Shares(*shares)


def _spans(records: Records) -> Floats:
    """The seconds that each rank's records cover."""
    span = np.zeros(len(records.ranks))
    has = np.flatnonzero(np.diff(records.bounds))
    first, last = records.bounds[has], records.bounds[has + 1] - 1
    ended = np.maximum(records.slots["finished_ns"][last], records.slots["scheduled_ns"][last]).astype(np.int64)
    span[has] = (ended - records.slots["scheduled_ns"][first].astype(np.int64)) / 1e9
    return span


def step_seconds(records: Records) -> Floats:
    """The median time of a rank's last steps in seconds, NaN where its calls do not repeat.

    A step is what :func:`simcoll.core.steps.period_of` finds: the shortest sequence of calls (group,
    signature and line) that repeats.
    """
    found = np.full(len(records.ranks), np.nan)
    tokens = records.slots["group"].astype(np.int64) << 42
    tokens += (records.slots["signature"].astype(np.int64) << 21) + records.slots["source"]
    made = records.slots["scheduled_ns"].astype(np.int64)
    periods: list[int] = []
    searched = 0
    for place, (start, stop) in enumerate(pairwise(records.bounds.tolist())):
        own = tokens[start:stop]
        period = next((one for one in periods if _repeats(own, one)), 0)
        if not period and searched < _SEARCHES:
            searched += 1
            steps = period_of(own) if len(own) else None
            if steps is not None:
                period = steps.period
                periods.append(period)
        if period:
            found[place] = float(np.median(made[start + period : stop] - made[start : stop - period])) / 1e9
    return found


def _repeats(tokens: Integers, period: int) -> bool:
    """True if most calls are those of a period before."""
    return len(tokens) > 2 * period and float((tokens[period:] == tokens[:-period]).mean()) > _MOSTLY


def current_rows(records: Records) -> Integers:
    """The row that shows where each rank is: the first call that it waits for, or else its last one; -1 for none."""
    found = np.where(np.diff(records.bounds) > 0, records.bounds[1:] - 1, -1)
    slots = records.slots
    waits = np.flatnonzero((slots["state"] <= State.STARTED) & ((slots["flags"] & AWAITED) != 0))
    ranks, first = np.unique(records.rank[waits], return_index=True)
    found[ranks] = waits[first]
    return found
