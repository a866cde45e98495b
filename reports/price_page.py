"""A page of priced figures: facts first, then bars, a curve, the timeline, the topology, and tables.

What it shows is given as texts and numbers; whose prices they are is no business of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from simcoll.reports.curve_picture import CurvePicture
from simcoll.reports.page_chart import script_json
from simcoll.reports.page_shell import Figure, PageTable, page
from simcoll.reports.spans import Spans, spans_document


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure, what it is, and what is to be known of it; ``marked`` is what stands in the way."""

    name: str
    value: str
    note: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """The parts of one bar, in seconds, in the order of the chart's ``parts``; and in words."""

    name: str
    seconds: tuple[float, ...]
    text: str

    def placed(self, longest: float) -> list[tuple[float, float]]:
        """Where each part begins and how wide it is, in hundredths of the chart's width."""
        found, at = [], 0.0
        for part in self.seconds:
            width = part / longest * 100 if longest else 0.0
            found.append((at, width))
            at += width
        return found


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars on one scale, of parts that have these names."""

    title: str
    parts: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def longest(self) -> float:
        """Seconds of the longest bar."""
        return max((sum(bar.seconds) for bar in self.bars), default=0.0)


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a page of prices says. ``first`` are the tables before the timeline, ``tables`` those behind the figures."""

    kind: str
    title: str
    line: str
    facts: Sequence[Fact] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    bars: Bars | None = None
    curve: CurvePicture | None = None
    spans: Spans | None = None
    first: Sequence[PageTable] = ()
    tables: Sequence[PageTable] = ()
    figures: Sequence[Figure] = ()


def sheet_page(sheet: Sheet) -> str:
    """The whole page: one file that needs no other."""
    data = "" if sheet.spans is None else script_json(spans_document(sheet.spans))
    escaped = Markup(data)  # noqa: S704  # as JSON for a script element
    return page("sheet.html.jinja", sheet.figures, sheet=sheet, spans_data=escaped)
