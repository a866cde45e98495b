"""The tables of a page: where ranks ended, and the timeline for who reads it by ear or without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.core.ranges import ranks_text
from simcoll.reports.terminal import ended_text
from simcoll.verifier.findings.describe import group_name, record_text
from simcoll.verifier.findings.finding import RankState
from simcoll.verifier.findings.overview import Mark
from simcoll.verifier.views.chart import Chart
from simcoll.verifier.views.chart_kinds import SEVERITIES

_MOST_COLUMNS = 60
_MOST_CROWDS = 200


@dataclass(frozen=True, slots=True)
class Crowd:
    """Ranks that ended alike, and after the same call; ``count`` of them."""

    ranks: str
    count: int
    state: str
    last: str


@dataclass(frozen=True, slots=True)
class CallRow:
    """One column of the timeline in words: the call, and the ranks that ended it or not, by how it went."""

    place: int
    call: str
    ended: str
    others: str


def crowds(states: Sequence[RankState]) -> tuple[list[Crowd], int]:
    """Ranks by where they ended, the first rank's place first; and how many places are left out."""
    places: dict[tuple[str, str], list[int]] = {}
    for state in states:
        last = "no call recorded" if state.last is None else record_text(state.last)
        places.setdefault((state.status.value + ended_text(state.exit_code), last), []).append(state.rank)
    found = [Crowd(ranks_text(ranks), len(ranks), state, last) for (state, last), ranks in places.items()]
    return found[:_MOST_CROWDS], max(len(found) - _MOST_CROWDS, 0)


def call_rows(chart: Chart) -> list[CallRow]:
    """The columns in which something did not end, or that a finding names, and the last ones: at most sixty."""
    marks = np.array([SEVERITIES.index(kind.mark) for kind in chart.kinds])
    worst = marks[chart.cells].max(axis=0)
    odd = set(np.flatnonzero(worst > SEVERITIES.index(Mark.DONE)).tolist()) | {spot.column for spot in chart.spots}
    kept = sorted(odd)[:_MOST_COLUMNS]
    last = range(len(chart.columns) - 1, -1, -1)
    kept += [column for column in last if column not in set(kept)][: max(_MOST_COLUMNS // 3 - len(kept), 0)]
    places = np.cumsum([0, *(column.span for column in chart.columns)])
    return [_row(chart, column, int(places[column]) + 1) for column in sorted(kept)]


def _row(chart: Chart, column: int, place: int) -> CallRow:
    group, groups = chart.groups[chart.columns[column].line]
    kinds = chart.cells[chart.rows, column]
    ops = sorted({chart.kinds[kind].op for kind in np.unique(kinds)} - {""})
    number = f"{'message ' if chart.columns[column].message else '#'}{chart.columns[column].number}"
    of = group_name(group) + (f" and {groups - 1:,} more of its kind" if groups > 1 else "")
    by_mark = dict(_by_mark(chart, kinds))
    others = [f"{mark.value}: {ranks}" for mark, ranks in by_mark.items() if mark not in (Mark.DONE, Mark.OUTSIDE)]
    return CallRow(place, f"{', '.join(ops)} {number} of {of}", by_mark.get(Mark.DONE, ""), "; ".join(others))


def _by_mark(chart: Chart, kinds: np.ndarray[tuple[int], np.dtype[np.uint16]]) -> Iterator[tuple[Mark, str]]:
    marks = np.array([SEVERITIES.index(kind.mark) for kind in chart.kinds])[kinds]
    for number in np.unique(marks):
        yield SEVERITIES[number], ranks_text(chart.ranks[place] for place in np.flatnonzero(marks == number))
