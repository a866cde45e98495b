"""What the cells of a chart say: calls that state the same from the same line, and went the same way, are one kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, State
from simcoll.core.trace import Trace
from simcoll.verifier.findings.describe import call_text, source_text
from simcoll.verifier.findings.overview import Mark
from simcoll.verifier.views.timeline_codes import Codes, Coding, line_of

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
