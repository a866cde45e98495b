"""Where a call stands in the life of its group, as one number: what calls of one column of a timeline have in common.

Groups of one kind that have no rank in common (a tensor-parallel group for each node, say) share columns, so that ranks
that do the same in different groups have equal rows.

What the cells of a chart say: calls that state the same from the same line, and went the same way, are one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, State
from simcoll.core.trace import Trace
from simcoll.verifier.findings.describe import call_text, source_text
from simcoll.verifier.findings.finding import CallPlace, Finding, Side
from simcoll.verifier.findings.overview import Mark
from simcoll.verifier.views.progress import kind_of
from simcoll.verifier.views.selection import Selection

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
        """The codes at which findings are, as :func:`lifeless` gives them."""
        return np.array([code for one in findings for code, _ in self.named(one)], np.int64)

    def named(self, finding: Finding) -> list[tuple[int, frozenset[int]]]:
        """The codes at which a finding is, as :func:`lifeless` gives them, and the ranks that it names at each.

        These are its culprits; where no majority names one, everybody who does not stand with the first side, or, in a
        finding that is at no one call, whoever is at the call of a side.
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
        """A group of a code's line, and how many there are."""
        groups = self._groups[code >> 43]
        return groups[0], len(groups)

    def _life(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Which life of the group each call belongs to: a group made anew counts from 1 again."""
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
    """A code's number in its group, and whether it is that of a message."""
    return code & 0xFFFFFFFF, bool(code >> 32 & 1)


def line_of(codes: Codes) -> Codes:
    """The line of each code."""
    return codes >> 43


def lifeless(codes: Codes) -> Codes:
    """Codes that are equal in every life of a group: a finding does not say in which one it is."""
    return codes & ~np.int64((_LIVES - 1) << 33)


_MARKS = {
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
    """What a cell says: how the call went, its op, what it states, and from which line; empty where nothing is known.

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
        """What is left out, in words; empty where nothing is."""
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
        signature, state = int(slot["signature"]), int(slot["state"])
        mark = _MARKS.get(State(state), Mark.OPEN) if state in State._value2member_map_ else Mark.OPEN
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
