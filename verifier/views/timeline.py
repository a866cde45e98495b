"""Ranks by collectives: every call of every rank in a column, in order of time; the columns that tell most are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simcoll.core.trace import Trace
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.overview import Column, Timeline
from simcoll.verifier.views.selection import Selection
from simcoll.verifier.views.timeline_cells import Cells
from simcoll.verifier.views.timeline_codes import Codes, Coding, lifeless, number_of

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
    columns = Columns()
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
class Columns:
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
