"""The report as one self-contained HTML page: nothing from the network, and every character from a trace escaped.

A policy in the page names its own style sheet and script by their hashes, so that the browser runs nothing else, even
if something were not escaped.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from simcoll import __version__
from simcoll.reports.history import history_rows
from simcoll.reports.overview import bandwidth_text, job_text, place_text, progress_text
from simcoll.reports.page_chart import chart_data, chart_letters, chart_ops
from simcoll.reports.page_findings import finding_views
from simcoll.reports.page_tables import call_rows, crowds
from simcoll.reports.plain import safe
from simcoll.reports.terminal import shown_texts, summary_line
from simcoll.verifier.chart import Chart
from simcoll.verifier.finding import Report
from simcoll.verifier.ranges import ranks_text
from simcoll.verifier.rules import RULES

_SCRIPTS = ("chart.js", "paint.js", "words.js", "theme.js", "timeline.js", "start.js")
_NOTHING_WRONG = "Nothing wrong"
_MOST_PLACES, _MOST_HISTORIES = 200, 64


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of a page: an SVG document, which the browser shows as an image and runs nothing of; and its words."""

    title: str
    svg: str
    text: str


def html_report(report: Report, chart: Chart | None = None, figures: Sequence[Figure] = ()) -> str:
    """The whole page. ``chart`` is the timeline's data; without it the page has none."""
    data, notes = ("", ()) if chart is None else chart_data(chart, report.findings)
    style, script = _part("page.css"), _script()
    verdict_text, line = _title(report)
    page = _environment().get_template("report.html.jinja")
    return page.render(
        policy=_policy(style, script, images=bool(figures)),
        style=Markup(style),  # noqa: S704  # files of this package, into which nothing is filled in
        script=Markup(script),  # noqa: S704
        chart_data=Markup(data),  # noqa: S704  # escaped as JSON for a script element
        version=__version__,
        verdict=report.verdict.value,
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
        figures=[(figure, Markup(b64encode(figure.svg.encode()).decode("ascii"))) for figure in figures],  # noqa: S704
        licences=_part("vendor/drawing.LICENSES.txt"),
        **_job(report),
    )


def _title(report: Report) -> tuple[str, str]:
    """``1 error`` or what else is to be said first, and the rest of the line that sums a report up."""
    first, _, rest = summary_line(report).removeprefix("simcoll: ").partition("; ")
    title, line = (first, rest) if rest else (_NOTHING_WRONG, first)
    return title[:1].upper() + title[1:], line[:1].upper() + line[1:]


def _job(report: Report) -> dict[str, object]:
    """Where the job and its ranks are."""
    summary = report.summary
    places = () if summary is None else summary.places
    found, more = crowds(report.ranks)
    return {
        "job": "" if summary is None else job_text(summary),
        "progress": [] if summary is None else [progress_text(one) for one in summary.progress],
        "speeds": [] if summary is None else [bandwidth_text(one) for one in summary.bandwidths],
        "places": [(ranks_text(place.ranks), place_text(place)) for place in places[:_MOST_PLACES]],
        "more_places": max(len(places) - _MOST_PLACES, 0),
        "crowds": found,
        "more_crowds": more,
        "histories": [(ranks_text(one.ranks), history_rows(one)) for one in report.histories[:_MOST_HISTORIES]],
        "more_histories": max(len(report.histories) - _MOST_HISTORIES, 0),
    }


@cache
def _environment() -> Environment:
    """Everything that a template puts out is made harmless as text, and then escaped as HTML."""
    return Environment(
        loader=FunctionLoader(_part),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )


def _harmless(value: object) -> object:
    return safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _part(name: str) -> str:
    return files("simcoll.reports").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """The drawing library, and the page's own scripts in a scope of their own."""
    own = "\n".join(_part(name) for name in _SCRIPTS)
    script = f'{_part("vendor/drawing.js")}\n(() => {{\n"use strict";\n{own}\n}})();\n'
    assert re.search(r"</script|<!--", script, re.IGNORECASE) is None, "a script that would end its own element"
    return script


def _policy(style: str, script: str, *, images: bool) -> str:
    parts = ["default-src 'none'", f"style-src {_hash(style)}", f"script-src {_hash(script)}"]
    parts += ["img-src data:"] if images else []
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"
