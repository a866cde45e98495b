"""The parts of a report that a reader asks to see: some groups and ranks, the last calls, the timeline.

Each rank's last calls are its history; :func:`with_before` adds more of the calls before a finding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from simcoll.core.record import Group, Record
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.findings.finding import DRY_RUN, Finding, History, Report
from simcoll.verifier.views.chart import Chart, chart_of, timeless
from simcoll.verifier.views.selection import Selection, check_selection, selected, selected_ranks
from simcoll.verifier.views.summary import kind_of
from simcoll.verifier.views.timeline import COLUMNS, timeline_of

_Calls: TypeAlias = tuple[tuple[Record, Group], ...]


def histories_of(
    traces: Sequence[Trace], count: int, selection: Selection, ranks: Collection[int]
) -> tuple[History, ...]:
    """The last ``count`` calls of each of these ranks on the selected groups; equal ones together."""
    crowds: dict[object, list[tuple[int, _Calls]]] = {}
    for trace in traces:
        if trace.rank in ranks:
            calls = _last(trace, count, selection)
            crowds.setdefault(tuple(_key(*call) for call in calls), []).append((trace.rank, calls))
    return tuple(_history([rank for rank, _ in crowd], crowd[0][1]) for crowd in crowds.values())


def _history(ranks: Sequence[int], calls: _Calls) -> History:
    return History(tuple(ranks), tuple(record for record, _ in calls), tuple(group for _, group in calls))


def with_before(finding: Finding, traces: Sequence[Trace], count: int) -> Finding:
    """A finding with the last ``count`` collectives of its group before it, as one of its ranks wrote them down."""
    if finding.group is None or len(finding.before) >= count:
        return replace(finding, before=finding.before[-count:])
    until = finding.before[-1].sequence if finding.before else (finding.sequence or 1) - 1
    majority = [rank for rank in finding.ranks if rank not in finding.culprits]
    by_rank = {trace.rank: trace for trace in traces}
    witness = next((rank for rank in (*majority, *finding.ranks) if rank in by_rank), None)
    if witness is None:
        return finding
    trace = by_rank[witness]
    mine = [index for index, group in enumerate(trace.groups) if group == finding.group]
    slots = trace.slots
    earlier = np.isin(slots["group"], mine) & (slots["p2p_sequence"] == 0) & (slots["sequence"] <= until)
    rows = np.flatnonzero(earlier)
    rows = rows[np.argsort(slots["sequence"][rows], kind="stable")][-count:]
    before = tuple(record for row in rows if (record := record_at(trace, int(row))) is not None)
    return replace(finding, before=before) if len(before) > len(finding.before) else finding


def _last(trace: Trace, count: int, selection: Selection) -> _Calls:
    slots = trace.slots
    rows = np.arange(len(slots))
    if selection.groups:
        shown = [index for index, group in enumerate(trace.groups) if selection.has_group(group)]
        rows = np.flatnonzero(np.isin(slots["group"], shown))
    found = ((record_at(trace, int(row)), int(slots[row]["group"])) for row in rows[-count:])
    return tuple((record, trace.groups[index]) for record, index in found if record is not None)


def _key(record: Record, group: Group) -> object:
    """A key that is equal where ranks did the same, each at its own time, in groups of one kind."""
    number = record.sequence, record.p2p_sequence
    return kind_of(group), number, record.call.op, record.state, record.source.file, record.source.line


_NOTHING_LEFT_OUT = Selection()


@dataclass(frozen=True, slots=True)
class View:
    """``last`` (or None) is the number of calls shown: of each rank, before each finding, in the timeline."""

    selection: Selection = _NOTHING_LEFT_OUT
    last: int | None = None
    timeline: bool = False


def viewed(report: Report, traces: Sequence[Trace], view: View) -> Report:
    """The report as asked for; raises :class:`~simcoll.verifier.views.selection.SelectionError`."""
    check_selection(view.selection, traces, report.world_size)
    whole, report = report, selected(report, view.selection, traces)
    ranks = selected_ranks(view.selection, traces)
    if view.last is not None:
        report = replace(
            report,
            findings=tuple(with_before(finding, traces, view.last) for finding in report.findings),
            histories=histories_of(traces, view.last, view.selection, ranks),
        )
    if view.timeline:
        columns = COLUMNS if view.last is None else view.last
        report = replace(report, timeline=timeline_of(traces, whole.findings, view.selection, ranks, columns))
    return report


def charted(report: Report, traces: Sequence[Trace], selection: Selection = _NOTHING_LEFT_OUT) -> Chart | None:
    """The picture of a report as shown: the selection, with the places of its findings."""
    chart = chart_of(traces, report.findings, selection, selected_ranks(selection, traces))
    return timeless(chart) if chart is not None and report.mode == DRY_RUN else chart
