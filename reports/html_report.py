"""The report as one self-contained HTML page: nothing from the network, and every character from a trace escaped."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from simcoll.core.ranges import ranks_text
from simcoll.reports.history import history_rows
from simcoll.reports.overview import bandwidth_text, job_text, place_text, progress_text
from simcoll.reports.page_chart import chart_data, chart_letters, chart_ops
from simcoll.reports.page_findings import finding_views
from simcoll.reports.page_shell import Figure, PageTable, page
from simcoll.reports.page_tables import call_rows, crowds
from simcoll.reports.terminal import shown_texts, summary_line
from simcoll.verifier.findings.finding import Report, Severity, Verdict
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.views.chart import Chart

_NOTHING_WRONG = "Nothing wrong"
_MOST_PLACES, _MOST_HISTORIES, _MOST_GROUPS = 200, 64, 100


def html_report(
    report: Report, chart: Chart | None = None, figures: Sequence[Figure] = (), tables: Sequence[PageTable] = ()
) -> str:
    """The whole page. ``chart`` is the timeline's data; without it the page has none."""
    data, notes = ("", ()) if chart is None else chart_data(chart, report.findings)
    verdict_text, line = _title(report)
    return page(
        "report.html.jinja",
        figures,
        chart_data=Markup(data),  # noqa: S704  # escaped as JSON for a script element
        verdict=_class(report),
        verdict_text=verdict_text,
        line=line,
        asides=[*shown_texts(report), *(f"note: {note}" for note in report.notes)],
        findings=finding_views(report.findings),
        rules=[RULES[code] for code in sorted({finding.code for finding in report.findings})],
        chart=chart,
        chart_ops=chart_ops,
        chart_letters=chart_letters,
        chart_notes=notes,
        call_rows=[] if chart is None else call_rows(chart),
        tables=tables,
        **_job(report),
    )


def _class(report: Report) -> str:
    """How the verdict is coloured: what only warns is nothing that failed."""
    severities = {finding.severity for finding in report.findings}
    return "warned" if report.verdict is Verdict.FINDINGS and severities == {Severity.WARNING} else report.verdict.value


def _title(report: Report) -> tuple[str, str]:
    """``1 error`` or what else is to be said first, and the rest of the line that sums a report up."""
    first, _, rest = summary_line(report).removeprefix("simcoll: ").partition("; ")
    title, line = (first, rest) if rest else (_NOTHING_WRONG, first)
    return title[:1].upper() + title[1:], line[:1].upper() + line[1:]


def _job(report: Report) -> dict[str, object]:
    """Where the job and its ranks are."""
    summary = report.summary
    places = () if summary is None else summary.places
    progress, speeds = ((), ()) if summary is None else (summary.progress, summary.bandwidths)
    found, more = crowds(report.ranks)
    return {
        "job": "" if summary is None else job_text(summary),
        "progress": [progress_text(one) for one in progress[:_MOST_GROUPS]],
        "more_progress": max(len(progress) - _MOST_GROUPS, 0),
        "speeds": [bandwidth_text(one) for one in speeds[:_MOST_GROUPS]],
        "more_speeds": max(len(speeds) - _MOST_GROUPS, 0),
        "places": [(ranks_text(place.ranks), place_text(place)) for place in places[:_MOST_PLACES]],
        "more_places": max(len(places) - _MOST_PLACES, 0),
        "crowds": found,
        "more_crowds": more,
        "histories": [(ranks_text(one.ranks), history_rows(one)) for one in report.histories[:_MOST_HISTORIES]],
        "more_histories": max(len(report.histories) - _MOST_HISTORIES, 0),
    }
