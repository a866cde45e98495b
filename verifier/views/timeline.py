"""Ranks by collectives: every call of every rank in a column, in order of time; the most telling columns are kept.

A cell has a rank's call in a column, and marks a difference from the others. Calls that state the same from the same
line, with the same outcome, are one kind.

:class:`Coding` numbers the place of a call in the life of its group: calls of one column have one number. Groups of one
kind that have no rank in common (a tensor-parallel group for each node, say) share columns, so that ranks that do the
same in different groups have equal rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, State
from simcoll.core.trace import Trace
from simcoll.spec.call import Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.verifier.findings.describe import call_text, source_text
from simcoll.verifier.findings.finding import CallPlace, Cell, Column, Finding, Mark, Side, Timeline
from simcoll.verifier.views.selection import Selection
from simcoll.verifier.views.summary import kind_of

Codes: TypeAlias = npt.NDArray[np.int64]
"""Line (20 bits), life of the group (10), whether it is a message (1), number (32); -1 where a call has no column."""

_LINES, _LIVES = 1 << 20, 1 << 10


class Coding:
    """The lines of columns: one for groups of one kind without common ranks."""

    def __init__(self, traces: Sequence[Trace], selection: Selection) -> None:
        self._lines: dict[tuple[str, tuple[int, ...]], int] = {}
        self._groups: list[list[Group]] = []
        self._kinds: dict[tuple[str, int], list[tuple[int, set[int]]]] = {}
        # Where a ring has wrapped, lives are counted from the last.
        self._wrapped = any(trace.dropped or trace.dropped_p2p for trace in traces)
        for trace in traces:
            for group in trace.groups:
                if trace.rank in group.ranks and selection.has_group(group):
                    self._take(group)

    def line(self, group: Group) -> int:
        """The line of a group; -1 for one that is not shown."""
        return self._lines.get((group.name, group.ranks), -1)

    def codes(self, trace: Trace) -> Codes:
        """The code of each row of a trace."""
        slots = trace.slots
        mine = (self.line(group) if trace.rank in group.ranks else -1 for group in trace.groups)
        table = np.array([*mine, -1], np.int64)
        lines = table[np.minimum(slots["group"], len(trace.groups))]
        message = slots["p2p_sequence"] > 0
        numbers = np.where(message, slots["p2p_sequence"], slots["sequence"]).astype(np.int64)
        codes = np.full(len(slots), -1, np.int64)
        for kind in np.unique((lines * 2 + message)[lines >= 0]):
            rows = np.flatnonzero(lines * 2 + message == kind)
            lives = self._life(numbers[rows])
            codes[rows] = (((kind >> 1) * _LIVES + lives) * 2 + (kind & 1)) << 32 | numbers[rows]
        return codes

    def of_findings(self, findings: Sequence[Finding]) -> Codes:
        """The codes of all findings, as :func:`lifeless` gives them."""
        return np.array([code for one in findings for code, _ in self.named(one)], np.int64)

    def named(self, finding: Finding) -> list[tuple[int, frozenset[int]]]:
        """The codes of a finding, as :func:`lifeless` gives them, and the ranks that it names at each.

        These are its culprits; where no majority names one, all ranks that are not of the first side, or, in a
        finding without one call, the ranks at the call of a side.
        """
        culprits = frozenset(finding.culprits)
        if finding.group is not None and finding.sequence is not None:
            others = frozenset(rank for side in finding.sides[1:] for rank in side.ranks)
            found = [(CallPlace(finding.group, finding.sequence), culprits or others)]
        else:
            at = [(side.place, _at(side, side.place)) for side in finding.sides if side.place is not None]
            found = [(place, ranks & culprits if culprits else ranks) for place, ranks in at]
        return [(self._code(place), ranks) for place, ranks in found if self.line(place.group) >= 0]

    def _code(self, place: CallPlace) -> int:
        return self.line(place.group) << 43 | (place.rank is not None) << 32 | place.number

    def group_of(self, code: int) -> tuple[Group, int]:
        """A group of a code's line, and the number of groups there."""
        groups = self._groups[code >> 43]
        return groups[0], len(groups)

    def _life(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The life of the group to which each call belongs: a group made anew counts from 1 again."""
        lives: npt.NDArray[np.int64] = np.maximum(np.cumsum(numbers == 1, dtype=np.int64), 1)
        last = lives[-1] - _LIVES + 1 if self._wrapped else np.int64(0)
        return np.clip(lives - last, 0, _LIVES - 1)

    def _take(self, group: Group) -> None:
        key = group.name, group.ranks
        if key in self._lines or len(self._groups) >= _LINES:
            return
        lines = self._kinds.setdefault(kind_of(group), [])
        found = next(((line, taken) for line, taken in lines if taken.isdisjoint(group.ranks)), None)
        if found is None:
            found = len(self._groups), set()
            lines.append(found)
            self._groups.append([])
        self._lines[key] = found[0]
        found[1].update(group.ranks)
        self._groups[found[0]].append(group)


def _at(side: Side, place: CallPlace) -> frozenset[int]:
    """The ranks of a side that are at its place: a message has its number on one rank."""
    return frozenset(side.ranks if place.rank is None else (place.rank,))


def number_of(code: int) -> tuple[int, bool]:
    """A code's number in its group, and True if it is that of a message."""
    return code & 0xFFFFFFFF, bool(code >> 32 & 1)


def line_of(codes: Codes) -> Codes:
    """The line of each code."""
    return codes >> 43


def lifeless(codes: Codes) -> Codes:
    """Codes that are equal in every life of a group: a finding does not state its life."""
    return codes & ~np.int64((_LIVES - 1) << 33)


_MARKS: dict[int, Mark] = {
    State.SCHEDULED: Mark.OPEN,
    State.STARTED: Mark.OPEN,
    State.COMPLETED: Mark.DONE,
    State.FAILED: Mark.FAILED,
    State.REJECTED: Mark.FAILED,
}
SEVERITIES = (Mark.OUTSIDE, Mark.DONE, Mark.ABSENT, Mark.OPEN, Mark.FAILED)
"""Marks from harmless to bad."""

_SEVERITY = {mark: place for place, mark in enumerate(SEVERITIES)}
_MOST_KINDS, _MOST_OPS = 20_000, 40_000
_MOST_READ = 400_000
_TERSE = "what calls state and from which lines is left out for some: there are too many different ones for one page"


@dataclass(frozen=True, slots=True)
class ChartKind:
    """The content of a cell: the call's outcome, its op, its statement, and its line; empty where nothing is known.

    ``said`` is :func:`~simcoll.verifier.findings.describe.call_text`, ``source`` the line of the program in words.
    """

    mark: Mark
    op: str = ""
    said: str = ""
    source: str = ""


class Kinds:
    """The kinds of a job, which grow with each trace that is read."""

    PLACE = (1 << 24) - 1
    """The bits of a cell that are the place of its kind; those above say how bad it is."""

    def __init__(self, coding: Coding, codes: Codes) -> None:
        self._coding = coding
        self._lines = line_of(codes)
        self._order = np.argsort(codes, kind="stable")
        self._ascending = codes[self._order]
        self._places: dict[ChartKind, int] = {}
        self._read = 0
        self._terse = False
        self._outside, self._absent = self._cell(ChartKind(Mark.OUTSIDE)), self._cell(ChartKind(Mark.ABSENT))

    @property
    def note(self) -> str:
        """The omissions, in words; empty where there are none."""
        return _TERSE if self._terse else ""

    def row(self, trace: Trace, codes: Codes) -> npt.NDArray[np.uint32]:
        """One rank's cells: severity and place of the kind, so that the worse of two cells is the greater one."""
        cells = np.where(np.isin(self._lines, self._membership(trace)), self._absent, self._outside)
        rows = np.flatnonzero(codes >= 0)
        if len(rows):
            at = self._order[np.searchsorted(self._ascending, codes[rows])]
            cells[at] = self._made(trace, rows)
        return cells.astype(np.uint32)

    def sorted(self) -> tuple[tuple[ChartKind, ...], npt.NDArray[np.uint16]]:
        """All kinds from harmless to bad, and the number that each place has in this order."""
        kinds = list(self._places)
        order = sorted(range(len(kinds)), key=lambda place: (_SEVERITY[kinds[place].mark], place))
        numbers = np.zeros(len(kinds), np.uint16)
        numbers[order] = np.arange(len(kinds))
        return tuple(kinds[place] for place in order), numbers

    def _membership(self, trace: Trace) -> list[int]:
        """The lines in which a rank that made no call is absent: it is a member, and nothing was overwritten."""
        lost = set(trace.dropped) | set(trace.dropped_p2p)
        mine = [group for index, group in enumerate(trace.groups) if trace.rank in group.ranks and index not in lost]
        return [line for group in mine if (line := self._coding.line(group)) >= 0]

    def _made(self, trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        slots = trace.slots[rows]
        columns = [slots[name].astype(np.int64) for name in ("group", "signature", "source")]
        group, signature, source = (np.minimum(column, (1 << 20) - 1) for column in columns)
        keys = (group << 43) | (signature << 23) | (source << 3) | np.minimum(slots["state"], 7)
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        return np.array([self._kind(trace, int(rows[row])) for row in first], np.int64)[place]

    def _kind(self, trace: Trace, row: int) -> int:
        slot = trace.slots[row]
        signature, mark = int(slot["signature"]), _MARKS.get(int(slot["state"]), Mark.OPEN)
        if signature >= len(trace.signatures):
            return self._cell(ChartKind(mark, "unreadable"))
        call = trace.signatures[signature]
        self._read += 1
        if self._read > _MOST_READ or len(self._places) >= _MOST_KINDS:
            self._terse = True
            return self._cell(ChartKind(mark, call.op if len(self._places) < _MOST_OPS else "another call"))
        group: Group = trace.groups[int(slot["group"])]
        source = int(slot["source"])
        line = source_text(trace.sources[source]) if source < len(trace.sources) else ""
        return self._cell(ChartKind(mark, call.op, call_text(call, group), line))

    def _cell(self, kind: ChartKind) -> int:
        return _SEVERITY[kind.mark] << 24 | self._places.setdefault(kind, len(self._places))


_ORDER = list(Mark)
_NOBODY = -1


class Cells:
    """A matrix of ranks by columns that grows by one trace at a time."""

    def __init__(self, coding: Coding, codes: Codes, findings: Sequence[Finding]) -> None:
        self._coding = coding
        self._codes = codes
        self._findings = findings
        self._ranks: list[int] = []
        self._ops: dict[str, int] = {"": 0}
        self._statements: dict[object, int] = {}
        self._by_rank: list[npt.NDArray[np.int64]] = []
        self._groups: dict[tuple[str, tuple[int, ...]], int] = {}

    def add(self, trace: Trace, codes: Codes) -> None:
        """Take in one rank: mark, op, statement and group of each column, as four rows of numbers."""
        order = np.argsort(codes, kind="stable")
        at = np.searchsorted(codes[order], self._codes)
        rows = order[np.minimum(at, max(len(order) - 1, 0))] if len(order) else np.zeros(len(self._codes), np.int64)
        made = codes[rows] == self._codes if len(order) else np.zeros(len(self._codes), np.bool_)
        found = np.full((4, len(self._codes)), _NOBODY, np.int64)
        found[0], found[1] = self._absence(trace), 0
        calls: dict[tuple[int, int], tuple[int, int, int]] = {}
        for column in np.flatnonzero(made):
            slot = trace.slots[rows[column]]
            key = int(slot["group"]), int(slot["signature"])
            if key not in calls:
                calls[key] = self._said(trace, *key)
            found[:, column] = (_ORDER.index(_MARKS.get(int(slot["state"]), Mark.OPEN)), *calls[key])
        self._ranks.append(trace.rank)
        self._by_rank.append(found)

    def rows(self) -> tuple[tuple[tuple[int, ...], tuple[Cell, ...]], ...]:
        """Ranks with equal cells together, by their first rank."""
        if not self._by_rank:
            return ()
        everything = np.stack(self._by_rank)
        marks, ops = everything[:, 0], everything[:, 1]
        differs = self._differing(everything[:, 2], everything[:, 3])
        _, first, place = np.unique(
            np.concatenate([marks, ops, differs], axis=1), axis=0, return_index=True, return_inverse=True
        )
        names = list(self._ops)
        rows = []
        for number, row in enumerate(first):
            ranks = tuple(self._ranks[one] for one in np.flatnonzero(place.reshape(-1) == number))
            cells = zip(marks[row], ops[row], differs[row], strict=True)
            rows.append((ranks, tuple(Cell(_ORDER[mark], names[op], bool(odd)) for mark, op, odd in cells)))
        return tuple(sorted(rows))

    def _absence(self, trace: Trace) -> npt.NDArray[np.int64]:
        """Absent where the rank is a member and none of its records was overwritten; otherwise outside."""
        lost = set(trace.dropped) | set(trace.dropped_p2p)
        mine = [
            self._coding.line(group)
            for index, group in enumerate(trace.groups)
            if trace.rank in group.ranks and index not in lost
        ]
        absent, outside = _ORDER.index(Mark.ABSENT), _ORDER.index(Mark.OUTSIDE)
        return np.where(np.isin(line_of(self._codes), mine), absent, outside)

    def _said(self, trace: Trace, group_index: int, signature: int) -> tuple[int, int, int]:
        """A call's op, statement and group as numbers."""
        group = trace.groups[group_index]
        number = self._groups.setdefault((group.name, group.ranks), len(self._groups))
        if signature >= len(trace.signatures):
            return self._ops.setdefault("unreadable", len(self._ops)), _NOBODY, number
        call = trace.signatures[signature]
        stated = _statement(call, group, trace.rank)
        said = _NOBODY if stated is None else self._statements.setdefault(stated, len(self._statements))
        return self._ops.setdefault(call.op, len(self._ops)), said, number

    def _differing(self, stated: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """A mask: ranks that state otherwise than most of their group in a column, and ranks that a finding names."""
        differs = np.zeros(stated.shape, np.bool_)
        for column in range(stated.shape[1]):
            if len(np.unique(stated[:, column])) > 1:
                differs[:, column] = _outvoted(stated[:, column], groups[:, column])
        plain = lifeless(self._codes)
        for code, ranks in (place for finding in self._findings for place in self._coding.named(finding)):
            differs[np.ix_(np.isin(self._ranks, sorted(ranks)), plain == code)] = True
        made: npt.NDArray[np.bool_] = groups != _NOBODY
        return differs & made


def _statement(call: Call, group: Group, rank: int) -> object:
    """The fields that ranks of a group must state alike, without comparing sizes or forms; None for a message."""
    spec = COLLECTIVES.get(call.op)
    if spec is None or spec.kind is Kind.POINT_TO_POINT:
        return None
    stated = spec.statement(call, group.ranks.index(rank), len(group.ranks))
    contents = tuple((content.dtype, content.count) for content in stated.contents)
    return stated.op, stated.reduce_op, stated.root, stated.device, contents


def _outvoted(stated: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(stated), np.bool_)
    for group in np.unique(groups[stated != _NOBODY]):
        mine = (groups == group) & (stated != _NOBODY)
        votes = Counter(int(one) for one in stated[mine]).most_common(2)
        majority = votes[0][0] if len(votes) == 1 or votes[0][1] > votes[1][1] else None
        found |= mine & (stated != majority) if majority is not None else mine
    return found


COLUMNS = 60
"""Columns that are kept where no number is given."""

_AROUND = (0, -1, 1, -2, -3)
"""Columns beside that of a finding, those that tell most first."""

_EXPLAINED = 8
MERGED = 64
_LATEST = np.iinfo(np.uint64).max


def timeline_of(
    traces: Sequence[Trace],
    findings: Sequence[Finding],
    selection: Selection,
    ranks: Collection[int],
    count: int = COLUMNS,
) -> Timeline:
    """The timeline of these ranks and the selected groups: ``count`` columns, those near findings and the last ones."""
    coding = Coding(traces, selection)
    shown = [trace for trace in traces if trace.rank in ranks]
    coded = [coding.codes(trace) for trace in shown]
    columns = TimelineColumns()
    for start in range(0, len(shown), MERGED):
        columns.merge(shown[start : start + MERGED], coded[start : start + MERGED])
    codes, times = columns.in_time()
    places = _chosen(codes, coding.of_findings(findings), count)
    cells = Cells(coding, codes[places], findings)
    for trace, own in zip(shown, coded, strict=True):
        cells.add(trace, own)
    kept = [_column(coding, int(place), int(codes[place]), int(times[place])) for place in places]
    return Timeline(tuple(kept), cells.rows(), len(codes))


@dataclass(slots=True)
class TimelineColumns:
    """The columns of the traces so far: their codes, ascending, and the time at which the first rank made each call."""

    codes: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    times: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    def merge(self, traces: Sequence[Trace], coded: Sequence[Codes]) -> None:
        """Take in the calls of more traces."""
        rows = [np.flatnonzero(codes >= 0) for codes in coded]
        codes = [codes[row] for codes, row in zip(coded, rows, strict=True)]
        times = [trace.slots["scheduled_ns"][row] for trace, row in zip(traces, rows, strict=True)]
        self.codes, place = np.unique(np.concatenate([self.codes, *codes]), return_inverse=True)
        earlier, self.times = self.times, np.full(len(self.codes), _LATEST, np.uint64)
        np.minimum.at(self.times, place, np.concatenate([earlier, *times]))

    def in_time(self) -> tuple[Codes, npt.NDArray[np.uint64]]:
        """The columns in order of time; those of one group stay in their own order, whatever the hosts' clocks say."""
        line = self.codes >> 32
        starts = np.flatnonzero(np.diff(line, prepend=-1))
        parts = [np.maximum.accumulate(part) for part in np.split(self.times, starts[1:])] if len(starts) else []
        times = np.concatenate(parts) if parts else self.times
        order = np.argsort(times, kind="stable")
        return self.codes[order], self.times[order]


def _chosen(codes: Codes, wrong: Codes, count: int) -> list[int]:
    """The columns that are kept: those of the first findings, some around them, and the last ones."""
    found = np.flatnonzero(np.isin(lifeless(codes), wrong))[:_EXPLAINED].tolist()
    near = [place + step for step in _AROUND for place in found]
    kept = list(dict.fromkeys(place for place in near if 0 <= place < len(codes)))[:count]
    known = set(kept)
    place = len(codes) - 1
    while len(known) < min(count, len(codes)):
        known.add(place)
        place -= 1
    return sorted(known)


def _column(coding: Coding, place: int, code: int, time_ns: int) -> Column:
    group, groups = coding.group_of(code)
    number, is_message = number_of(code)
    return Column(place, group, groups, number, is_message, time_ns)
