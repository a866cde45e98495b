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
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.views.selection import Selection
from simcoll.verifier.views.timeline import (
    MERGED,
    ChartKind,
    Codes,
    Coding,
    Kinds,
    TimelineColumns,
    lifeless,
    line_of,
    number_of,
)

MOST_TIMES = 3_000_000
"""Calls for which it is worked out."""

STEPS = 8
"""A byte of ``1 + STEPS * log2(microseconds)``, rounded: steps of 9 %, up to more than half an hour; 0 is no time."""

NO_LATENESS: npt.NDArray[np.uint8] = np.zeros((0, 0), np.uint8)

LATENESS_LEFT_OUT = "how late each rank came is left out: there are too many calls for one page"
"""The note of a report whose chart has no lateness."""

_NEVER = np.iinfo(np.uint64).max


def lateness(
    coding: Coding, traces: Sequence[Trace], coded: Sequence[Codes], codes: Codes
) -> tuple[npt.NDArray[np.uint8], str]:
    """A byte for each rank and column, or nothing and the reason."""
    if len(traces) * len(codes) > MOST_TIMES:
        return NO_LATENESS, LATENESS_LEFT_OUT
    times = _times(traces, coded, codes)
    lines = line_of(codes)
    found = np.zeros(times.shape, np.uint8)
    for line, rows in _members(coding, traces):
        columns = np.flatnonzero(lines == line)
        if len(columns):
            at = np.ix_(np.array(rows), columns)
            found[at] = _bytes(times[at])
    return found, ""


def _times(traces: Sequence[Trace], coded: Sequence[Codes], codes: Codes) -> npt.NDArray[np.uint64]:
    """The time at which each rank came to each column; the greatest number where it did not, or no time is known."""
    order = np.argsort(codes, kind="stable")
    times = np.full((len(traces), len(codes)), _NEVER, np.uint64)
    for place, (trace, own) in enumerate(zip(traces, coded, strict=True)):
        made = trace.slots["scheduled_ns"]
        rows = np.flatnonzero((own >= 0) & (made > 0))
        times[place, order[np.searchsorted(codes[order], own[rows])]] = made[rows]
    return times


def _members(coding: Coding, traces: Sequence[Trace]) -> list[tuple[int, list[int]]]:
    """The line and the rows of the recorded members of each group."""
    found: dict[tuple[str, tuple[int, ...]], tuple[int, list[int]]] = {}
    for place, trace in enumerate(traces):
        for group in set(trace.groups):
            if trace.rank in group.ranks and (line := coding.line(group)) >= 0:
                found.setdefault((group.name, group.ranks), (line, []))[1].append(place)
    return list(found.values())


def _bytes(times: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    first = times.min(axis=0)
    known = times != _NEVER
    microseconds = np.where(known, times - first, 0).astype(np.float64) / 1000
    steps = np.rint(1 + STEPS * np.log2(np.maximum(microseconds, 1.0)))
    shown: npt.NDArray[np.uint8] = np.where(known, np.minimum(steps, 255), 0).astype(np.uint8)
    return shown


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
    coding = Coding(traces, selection)
    shown = sorted((trace for trace in traces if trace.rank in ranks), key=lambda trace: trace.rank)
    coded = [coding.codes(trace) for trace in shown]
    columns = TimelineColumns()
    for start in range(0, len(shown), MERGED):
        columns.merge(shown[start : start + MERGED], coded[start : start + MERGED])
    codes, times = columns.in_time()
    if not len(codes):
        return None
    spots = _spots(coding, codes, findings, [trace.rank for trace in shown])
    starts = _starts(len(codes), [spot.column for spot in spots], max(most // len(shown), 1))
    return _filled(coding, shown, coded, _Frame(codes, times, starts), spots)


def timeless(chart: Chart) -> Chart:
    """The chart of ranks that share no clock: their calls are placed by order."""
    columns = tuple(replace(column, time_ns=0) for column in chart.columns)
    notes = (*(note for note in chart.notes if note != LATENESS_LEFT_OUT), _BY_ORDER)
    return replace(chart, columns=columns, late=NO_LATENESS, notes=notes)


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """All columns in order of time, and the places at which drawn columns begin."""

    codes: Codes
    times: npt.NDArray[np.uint64]
    starts: Numbers

    def columns(self, lines: dict[int, int]) -> tuple[ChartColumn, ...]:
        spans = np.diff(self.starts, append=len(self.codes)).tolist()
        found = []
        for start, span in zip(self.starts.tolist(), spans, strict=True):
            code = int(self.codes[start])
            number, message = number_of(code)
            line = lines.setdefault(code >> 43, len(lines))
            found.append(ChartColumn(line, number, message, span, int(self.times[start])))
        return tuple(found)

    def drawn(self, spot: Spot) -> Spot:
        """A spot by the column that is drawn."""
        return replace(spot, column=int(np.searchsorted(self.starts, spot.column, side="right")) - 1)


def _filled(
    coding: Coding, shown: Sequence[Trace], coded: Sequence[Codes], frame: _Frame, spots: Sequence[Spot]
) -> Chart:
    kinds = Kinds(coding, frame.codes)
    drawn = [
        np.maximum.reduceat(kinds.row(trace, codes), frame.starts) for trace, codes in zip(shown, coded, strict=True)
    ]
    table, numbers = kinds.sorted()
    cells, rows = _distinct(numbers[np.stack(drawn) & Kinds.PLACE])
    lines: dict[int, int] = {}
    columns = frame.columns(lines)
    shared = len(columns) < len(frame.codes)
    late, unsaid = (NO_LATENESS, "") if shared else lateness(coding, shown, coded, frame.codes)
    groups = [coding.group_of(line << 43) for line in lines]
    spans = [column.span for column in columns]
    notes = (_sharing(spans) if shared else "", LATENESS_LEFT_OUT if shared else unsaid, kinds.note)
    return Chart(
        tuple(trace.rank for trace in shown),
        columns,
        tuple(groups),
        table,
        cells,
        rows,
        tuple(map(frame.drawn, spots)),
        late,
        len(frame.codes),
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


def _spots(coding: Coding, codes: Codes, findings: Sequence[Finding], ranks: Sequence[int]) -> list[Spot]:
    """The places of findings that name a call; one whose group was made anew is in each of its lives."""
    plain, places = lifeless(codes), {rank: place for place, rank in enumerate(ranks)}
    found = []
    for number, finding in enumerate(findings):
        for code, ranks_there in coding.named(finding):
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
