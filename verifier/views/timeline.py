"""Ranks by collectives for a terminal: of all columns the most telling ones are kept.

A cell has a rank's call in a column, and marks a difference from the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group
from simcoll.core.trace import Trace
from simcoll.spec.call import Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.verifier.findings.finding import Cell, Column, Finding, Mark, Timeline
from simcoll.verifier.views.call_columns import MARKS, Codes, Coding, call_columns, lifeless, line_of, number_of
from simcoll.verifier.views.selection import Selection

_ORDER = list(Mark)
_NOBODY = -1


class _Cells:
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
            found[:, column] = (_ORDER.index(MARKS.get(int(slot["state"]), Mark.OPEN)), *calls[key])
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
        mine = self._coding.lines_of_member(trace)
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


def timeline_of(
    traces: Sequence[Trace],
    findings: Sequence[Finding],
    selection: Selection,
    ranks: Collection[int],
    count: int = COLUMNS,
) -> Timeline:
    """The timeline of these ranks and the selected groups: ``count`` columns, those near findings and the last ones."""
    coding = Coding(traces, selection)
    columns = call_columns([trace for trace in traces if trace.rank in ranks], coding)
    codes, times = columns.codes, columns.times
    places = _chosen(codes, coding.of_findings(findings), count)
    cells = _Cells(coding, codes[places], findings)
    for trace, own in zip(columns.traces, columns.coded, strict=True):
        cells.add(trace, own)
    kept = [_column(coding, int(place), int(codes[place]), int(times[place])) for place in places]
    return Timeline(tuple(kept), cells.rows(), len(codes))


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
