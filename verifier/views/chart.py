"""A matrix of call states, ranks by calls, as small numbers: the data of a picture that zooms.

Where there are more calls than a picture can hold, neighbouring collectives share a column, which shows the worst of
them; those near findings and the last ones keep columns of their own.

:func:`lateness` gives, in one byte a call, each rank's delay after the first rank of its group. The times are those of
the ranks' own clocks, and no better than these.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group
from simcoll.core.trace import Trace
from simcoll.verifier.findings.describe import call_text, source_text
from simcoll.verifier.findings.finding import Finding, Mark
from simcoll.verifier.views.call_columns import (
    MARKS,
    CallColumns,
    Codes,
    Coding,
    call_columns,
    lifeless,
    line_of,
    number_of,
)
from simcoll.verifier.views.selection import Selection

MOST_TIMES = 3_000_000
"""Calls for which it is worked out."""

STEPS = 8
"""A byte of ``1 + STEPS * log2(microseconds)``, rounded: steps of 9 %, up to more than half an hour; 0 is no time."""

NO_LATENESS: npt.NDArray[np.uint8] = np.zeros((0, 0), np.uint8)

LATENESS_LEFT_OUT = "how late each rank came is left out: there are too many calls for one page"
"""The note of a report whose chart has no lateness."""

_NEVER = np.iinfo(np.uint64).max


def lateness(columns: CallColumns) -> tuple[npt.NDArray[np.uint8], str]:
    """A byte for each rank and column, or nothing and the reason."""
    if len(columns.traces) * len(columns.codes) > MOST_TIMES:
        return NO_LATENESS, LATENESS_LEFT_OUT
    times, lines = _times(columns), line_of(columns.codes)
    found = np.zeros(times.shape, np.uint8)
    for line, rows in _members(columns):
        places = np.flatnonzero(lines == line)
        if len(places):
            at = np.ix_(np.array(rows), places)
            found[at] = _bytes(times[at])
    return found, ""


def _times(columns: CallColumns) -> npt.NDArray[np.uint64]:
    """The time at which each rank came to each column; the greatest number where it did not, or no time is known."""
    codes = columns.codes
    order = np.argsort(codes, kind="stable")
    times = np.full((len(columns.traces), len(codes)), _NEVER, np.uint64)
    for place, (trace, own) in enumerate(zip(columns.traces, columns.coded, strict=True)):
        made = trace.slots["scheduled_ns"]
        rows = np.flatnonzero((own >= 0) & (made > 0))
        times[place, order[np.searchsorted(codes[order], own[rows])]] = made[rows]
    return times


def _members(columns: CallColumns) -> list[tuple[int, list[int]]]:
    """The line and the rows of the recorded members of each group."""
    found: dict[tuple[str, tuple[int, ...]], tuple[int, list[int]]] = {}
    for place, trace in enumerate(columns.traces):
        for group in set(trace.groups):
            if trace.rank in group.ranks and (line := columns.coding.line(group)) >= 0:
                found.setdefault((group.name, group.ranks), (line, []))[1].append(place)
    return list(found.values())


def _bytes(times: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    first = times.min(axis=0)
    known = times != _NEVER
    microseconds = np.where(known, times - first, 0).astype(np.float64) / 1000
    steps = np.rint(1 + STEPS * np.log2(np.maximum(microseconds, 1.0)))
    shown: npt.NDArray[np.uint8] = np.where(known, np.minimum(steps, 255), 0).astype(np.uint8)
    return shown


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


class _Kinds:
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
        cells = np.where(np.isin(self._lines, self._coding.lines_of_member(trace)), self._absent, self._outside)
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

    def _made(self, trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        slots = trace.slots[rows]
        columns = [slots[name].astype(np.int64) for name in ("group", "signature", "source")]
        group, signature, source = (np.minimum(column, (1 << 20) - 1) for column in columns)
        keys = (group << 43) | (signature << 23) | (source << 3) | np.minimum(slots["state"], 7)
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        return np.array([self._kind(trace, int(rows[row])) for row in first], np.int64)[place]

    def _kind(self, trace: Trace, row: int) -> int:
        slot = trace.slots[row]
        signature, mark = int(slot["signature"]), MARKS.get(int(slot["state"]), Mark.OPEN)
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


MOST_CELLS = 16_000_000
"""Cells of a chart; there are more ranks by calls than that only where columns are shared."""

_BY_ORDER = "the ranks ran one by one: their calls are placed by order, and have no times"

_AROUND = 48
_FINDINGS = 16
_LAST = 96

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """One or ``span`` collectives or messages, the first of which is the ``number``-th of its group.

    ``line`` indexes the chart's ``groups``; ``time_ns`` is when the first rank came (wall clock).
    """

    line: int
    number: int
    message: bool
    span: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of a finding: a column, and the places of ranks in the chart (not ranks) that it names there."""

    finding: int
    column: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """Ranks by collectives, in order of time.

    ``cells`` has a row for each way in which ranks went, a column for each of ``columns``, and in it the place of a
    ``kinds``, which are sorted from harmless to bad; ``rows`` has the row of each of ``ranks``. ``groups`` are the
    groups, with the number of those of one kind that share the columns. ``late`` has for each rank and column its delay
    after the first rank, and is empty where that is too much data. ``notes`` say in words what is left out.
    """

    ranks: tuple[int, ...]
    columns: tuple[ChartColumn, ...]
    groups: tuple[tuple[Group, int], ...]
    kinds: tuple[ChartKind, ...]
    cells: npt.NDArray[np.uint16]
    rows: npt.NDArray[np.uint32]
    spots: tuple[Spot, ...] = ()
    late: Bytes = field(default_factory=lambda: NO_LATENESS)
    total: int = 0
    notes: tuple[str, ...] = ()


def chart_of(
    traces: Sequence[Trace],
    findings: Sequence[Finding],
    selection: Selection,
    ranks: Collection[int],
    most: int = MOST_CELLS,
) -> Chart | None:
    """The chart of these ranks and the selected groups; None where they recorded no call."""
    shown = sorted((trace for trace in traces if trace.rank in ranks), key=lambda trace: trace.rank)
    columns = call_columns(shown, Coding(traces, selection))
    if not len(columns.codes):
        return None
    spots = _spots(columns, findings)
    starts = _starts(len(columns.codes), [spot.column for spot in spots], max(most // len(shown), 1))
    return _filled(_Frame(columns, starts), spots)


def timeless(chart: Chart) -> Chart:
    """The chart of ranks that share no clock: their calls are placed by order."""
    columns = tuple(replace(column, time_ns=0) for column in chart.columns)
    notes = (*(note for note in chart.notes if note != LATENESS_LEFT_OUT), _BY_ORDER)
    return replace(chart, columns=columns, late=NO_LATENESS, notes=notes)


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """All columns in order of time, and the places at which drawn columns begin."""

    all: CallColumns
    starts: Numbers

    def columns(self, lines: dict[int, int]) -> tuple[ChartColumn, ...]:
        spans = np.diff(self.starts, append=len(self.all.codes)).tolist()
        found = []
        for start, span in zip(self.starts.tolist(), spans, strict=True):
            code = int(self.all.codes[start])
            number, message = number_of(code)
            line = lines.setdefault(code >> 43, len(lines))
            found.append(ChartColumn(line, number, message, span, int(self.all.times[start])))
        return tuple(found)

    def drawn(self, spot: Spot) -> Spot:
        """A spot by the column that is drawn."""
        return replace(spot, column=int(np.searchsorted(self.starts, spot.column, side="right")) - 1)


def _filled(frame: _Frame, spots: Sequence[Spot]) -> Chart:
    traces, coding, total = frame.all.traces, frame.all.coding, len(frame.all.codes)
    kinds = _Kinds(coding, frame.all.codes)
    drawn = [
        np.maximum.reduceat(kinds.row(trace, codes), frame.starts)
        for trace, codes in zip(traces, frame.all.coded, strict=True)
    ]
    table, numbers = kinds.sorted()
    cells, rows = _distinct(numbers[np.stack(drawn) & _Kinds.PLACE])
    lines: dict[int, int] = {}
    columns = frame.columns(lines)
    shared = len(columns) < total
    late, unsaid = (NO_LATENESS, "") if shared else lateness(frame.all)
    groups = [coding.group_of(line << 43) for line in lines]
    spans = [column.span for column in columns]
    notes = (_sharing(spans) if shared else "", LATENESS_LEFT_OUT if shared else unsaid, kinds.note)
    return Chart(
        tuple(trace.rank for trace in traces),
        columns,
        tuple(groups),
        table,
        cells,
        rows,
        tuple(map(frame.drawn, spots)),
        late,
        total,
        tuple(filter(None, notes)),
    )


def coarser(chart: Chart) -> Chart:
    """The chart in fewer bytes: without lateness, or else with about half as many columns."""
    if chart.late.size:
        return replace(chart, late=NO_LATENESS, notes=(*chart.notes, LATENESS_LEFT_OUT))
    starts = _starts(len(chart.columns), [spot.column for spot in chart.spots], max(len(chart.columns) // 2, 1))
    spans = np.add.reduceat(np.array([column.span for column in chart.columns]), starts).tolist()
    columns = tuple(replace(chart.columns[start], span=span) for start, span in zip(starts, spans, strict=True))
    places = np.searchsorted(starts, [spot.column for spot in chart.spots], side="right") - 1
    spots = tuple(replace(spot, column=int(place)) for spot, place in zip(chart.spots, places, strict=True))
    cells = np.maximum.reduceat(chart.cells, starts, axis=1)
    notes = (*(note for note in chart.notes if not note.startswith("up to ")), _sharing(spans))
    return replace(chart, columns=columns, spots=spots, cells=cells, notes=notes)


def _sharing(spans: Sequence[int]) -> str:
    return (
        f"up to {max(spans):,} calls in a row share a column, which shows the worst of them: {sum(spans):,} are too "
        "many for one page; those near findings and the last ones have columns of their own"
    )


def _distinct(cells: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
    """Each row once, and the row of each rank."""
    seen: dict[bytes, int] = {}
    rows = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in cells], np.uint32)
    _, first = np.unique(rows, return_index=True)
    return cells[first], rows


def _spots(columns: CallColumns, findings: Sequence[Finding]) -> list[Spot]:
    """The places of findings that name a call; one whose group was made anew is in each of its lives."""
    plain = lifeless(columns.codes)
    places = {trace.rank: place for place, trace in enumerate(columns.traces)}
    found = []
    for number, finding in enumerate(findings):
        for code, ranks_there in columns.coding.named(finding):
            named = tuple(sorted(places[rank] for rank in ranks_there if rank in places))
            found += [Spot(number, column, named) for column in np.flatnonzero(plain == code).tolist()]
    return found


def _starts(total: int, wrong: Sequence[int], room: int) -> Numbers:
    """The places at which drawn columns begin, ``room`` of them or a few more."""
    if total <= room:
        return np.arange(total)
    alone = np.zeros(total + 1, np.bool_)
    alone[max(total - min(_LAST, room // 4), 0) :] = True
    for column in list(dict.fromkeys(wrong))[:_FINDINGS]:
        around = min(_AROUND, room // 64)
        alone[max(column - around, 0) : column + around + 1] = True
    left = int((~alone[:-1]).sum())
    step = -(-left // max(room - int(alone[:-1].sum()), 1))
    # One column ends where one that is alone begins, and another begins behind it.
    begins = alone[:-1] | np.concatenate([[True], alone[:-2]]) | (np.arange(total) % max(step, 1) == 0)
    return np.flatnonzero(begins)
