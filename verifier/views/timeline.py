"""Ranks by collectives: every call of every rank in a column, in order of time; the columns that tell most are kept.

The cells of a timeline: what each rank did in each column, and which ranks did otherwise than the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, State
from simcoll.core.trace import Trace
from simcoll.spec.call import Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.overview import Cell, Column, Mark, Timeline
from simcoll.verifier.views.selection import Selection
from simcoll.verifier.views.timeline_codes import Codes, Coding, lifeless, line_of, number_of

_MARKS: dict[int, Mark] = {
    State.SCHEDULED: Mark.OPEN,
    State.STARTED: Mark.OPEN,
    State.COMPLETED: Mark.DONE,
    State.FAILED: Mark.FAILED,
    State.REJECTED: Mark.FAILED,
}
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
        """Absent where the rank is a member and nothing it wrote down was overwritten; otherwise outside."""
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
        """Who states otherwise than most of its group, and whom a finding names."""
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
    """What ranks of a group must state alike, as far as neither sizes nor forms are compared; None for a message."""
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
"""Columns that are kept where nobody says how many."""

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
    """The columns of the traces so far: their codes, ascending, and when the first rank made each call."""

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
