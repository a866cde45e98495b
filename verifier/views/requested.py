"""The report as a reader asks to see it: some groups and ranks, the last calls, the timeline, the chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simcoll.core.trace import Trace
from simcoll.verifier.findings.finding import DRY_RUN, Report
from simcoll.verifier.views.chart import Chart, chart_of, timeless
from simcoll.verifier.views.last_calls import histories_of, with_before
from simcoll.verifier.views.selection import Selection, check_selection, selected, selected_ranks
from simcoll.verifier.views.timeline import COLUMNS, timeline_of

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
