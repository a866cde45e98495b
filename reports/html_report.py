"""The report as one self-contained HTML page: nothing from the network, and every character from a trace escaped.

It has findings as words and fields, pictures of circles of waits (`wait_picture.py`), and tables: where
ranks ended, and the timeline for readers with a screen reader or without scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from simcoll.core.ranges import ranks_text
from simcoll.reports.causes import advice_rows
from simcoll.reports.overview import bandwidth_text, history_rows, job_text, place_text, progress_text, steps_text
from simcoll.reports.page_shell import Figure, PageTable, chart_data, chart_letters, chart_ops, page
from simcoll.reports.terminal import NO_CALL, ended_places, shown_texts, summary_line
from simcoll.reports.wait_picture import WaitPicture, is_circle, wait_picture
from simcoll.verifier.findings.describe import (
    Field,
    advice_of,
    apart_text,
    before_text,
    culprits_text,
    fields_of,
    fields_text,
    frames_shown,
    group_name,
    marked_in,
    parting_text,
    source_text,
    where_text,
)
from simcoll.verifier.findings.finding import (
    Finding,
    Mark,
    Report,
    Rule,
    Severity,
    Side,
    Verdict,
)
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.views.chart import SEVERITIES, Chart

_SIDES_SHOWN = 64


@dataclass(frozen=True, slots=True)
class PageLine:
    """A line of the user's program: its place, and its text."""

    place: str
    code: str


@dataclass(frozen=True, slots=True)
class SideView:
    """Ranks that stated the same; ``culprit`` where all of them are."""

    ranks: str
    culprit: bool
    fields: tuple[Field, ...]
    note: str
    lines: tuple[PageLine, ...]


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding. ``place`` is its group and collective, ``hidden`` how many sides are not shown."""

    number: int
    rule: Rule
    severity: str
    message: str
    place: str
    culprits: str
    unknown: str
    before: str
    came_apart: str
    parted: str
    advice: str
    sides: tuple[SideView, ...]
    hidden: int
    waits: WaitPicture | None


def finding_views(findings: Sequence[Finding]) -> list[FindingView]:
    """Findings in their order; ``number`` counts from 0."""
    return [_view(number, finding) for number, finding in enumerate(findings)]


def _view(number: int, finding: Finding) -> FindingView:
    where = where_text(finding)
    return FindingView(
        number,
        RULES[finding.code],
        finding.severity.value,
        finding.message,
        f"in {where}" if where else "",
        culprits_text(finding),
        fields_text(finding.unknown),
        before_text(finding),
        apart_text(finding),
        parting_text(finding),
        advice_of(finding),
        tuple(_side(side, finding) for side in finding.sides[:_SIDES_SHOWN]),
        max(len(finding.sides) - _SIDES_SHOWN, 0),
        wait_picture(finding) if is_circle(finding) else None,
    )


def _side(side: Side, finding: Finding) -> SideView:
    fields = () if side.call is None else tuple(fields_of(side.call, finding.group, marked_in(finding)))
    return SideView(ranks_text(side.ranks), finding.blames(side), fields, side.note, tuple(_lines(side, finding.sides)))


def _lines(side: Side, sides: Sequence[Side]) -> Iterator[PageLine]:
    """The lines of a side, each followed by the frames around it that tell it from other sides."""
    lone = len(side.sources) > 1 and len(side.ranks) > 1
    for stated in side.sources:
        first, *others = frames_shown(sides, stated.source)
        rank = f"rank {stated.rank} at " if lone else ""
        yield PageLine(rank + source_text(first.frame), first.frame.code.strip())
        for one in others:
            yield PageLine(f"{one.how} {source_text(one.frame)}", one.frame.code.strip())


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
        advice=[] if report.advice is None else advice_rows(report.advice),
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
    """Returns the CSS class of the verdict: ``warned`` where every finding is a warning."""
    severities = {finding.severity for finding in report.findings}
    return "warned" if report.verdict is Verdict.FINDINGS and severities == {Severity.WARNING} else report.verdict.value


def _title(report: Report) -> tuple[str, str]:
    """The first part, such as ``1 error``, and the rest of the line that sums a report up."""
    first, _, rest = summary_line(report).removeprefix("simcoll: ").partition("; ")
    title, line = (first, rest) if rest else (_NOTHING_WRONG, first)
    return title[:1].upper() + title[1:], line[:1].upper() + line[1:]


def _job(report: Report) -> dict[str, object]:
    """The places of the job and its ranks."""
    summary = report.summary
    places = () if summary is None else summary.places
    progress, speeds = ((), ()) if summary is None else (summary.progress, summary.bandwidths)
    found, more = crowds(report)
    return {
        "job": "" if summary is None else job_text(summary),
        "progress": [progress_text(one) for one in progress[:_MOST_GROUPS]],
        "more_progress": max(len(progress) - _MOST_GROUPS, 0),
        "speeds": [bandwidth_text(one) for one in speeds[:_MOST_GROUPS]],
        "steps": [steps_text(one) for one in (() if summary is None else summary.steps)[:_MOST_GROUPS]],
        "more_speeds": max(len(speeds) - _MOST_GROUPS, 0),
        "places": [(ranks_text(place.ranks), place_text(place)) for place in places[:_MOST_PLACES]],
        "more_places": max(len(places) - _MOST_PLACES, 0),
        "crowds": found,
        "more_crowds": more,
        "histories": [(ranks_text(one.ranks), history_rows(one)) for one in report.histories[:_MOST_HISTORIES]],
        "more_histories": max(len(report.histories) - _MOST_HISTORIES, 0),
    }


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


def crowds(report: Report) -> tuple[list[Crowd], int]:
    """Ranks by the place of their end, the first rank's place first; and the number of places left out."""
    places = ended_places(report)
    found = [Crowd(ranks_text(ranks), len(ranks), state, last or NO_CALL) for (state, last), ranks in places.items()]
    return found[:_MOST_CROWDS], max(len(found) - _MOST_CROWDS, 0)


def call_rows(chart: Chart) -> list[CallRow]:
    """The columns in which a call did not end, or that a finding names, and the last ones: at most sixty."""
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
