"""A page of priced figures: facts first, then bars, a curve, the timeline, the topology, and tables.

The module is given texts and numbers, and does not depend on what was priced. A curve over sizes has a line for each
topology, on logarithmic axes; a timeline has what each rank's program does, and its collectives below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from simcoll.core.record import Group
from simcoll.core.text import safe
from simcoll.core.units import show_size
from simcoll.reports.page_shell import Figure, PageTable, packed, page, script_json
from simcoll.verifier.findings.describe import group_name


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
        """The begin and the width of each part, in hundredths of the chart's width."""
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
    """The content of a price page. ``first`` are the tables before the timeline, ``tables`` those after the figures.

    ``further`` are pictures of bars below ``bars``.
    """

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
    further: Sequence[Bars] = ()


def sheet_page(sheet: Sheet) -> str:
    """The whole page: one file that needs no other."""
    data = "" if sheet.spans is None else script_json(spans_document(sheet.spans))
    escaped = Markup(data)  # noqa: S704  # as JSON for a script element
    return page("sheet.html.jinja", sheet.figures, sheet=sheet, spans_data=escaped)


_WIDTH, _HEIGHT = 900.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 26.0, 14.0, 34.0
_TICKS = 10


@dataclass(frozen=True, slots=True)
class CurveLine:
    """The points of one line, and what each says."""

    number: int
    name: str
    points: tuple[tuple[float, float], ...]
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CurvePicture:
    """A picture with its grid (``across`` and ``up`` are places and labels), its lines, and its words."""

    title: str
    text: str
    lines: tuple[CurveLine, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    width: float = _WIDTH
    height: float = _HEIGHT
    left: float = _LEFT
    right: float = _WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = _HEIGHT - _BOTTOM


def bandwidth_curve(
    sizes: Sequence[int], lines: Sequence[tuple[str, Sequence[float]]], title: str
) -> CurvePicture | None:
    """Bytes/s over bytes, for each name; None where there is no curve: fewer than two sizes, or no bandwidth."""
    return curve_of(sizes, lines, title, show_size, _rate)


def curve_of(
    sizes: Sequence[int],
    lines: Sequence[tuple[str, Sequence[float]]],
    title: str,
    across: Callable[[int], str],
    up: Callable[[float], str],
) -> CurvePicture | None:
    """A line over ascending sizes for each name, on logarithmic axes with labels as the two functions write them.

    None where there is no curve: fewer than two sizes, or a value that is not above 0.
    """
    values = [value for _, rates in lines for value in rates if value > 0]
    if len(sizes) < 2 or len(values) < len(lines) * len(sizes):
        return None
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    low, high = 10.0 ** decades[0], 10.0 ** max(decades[-1], decades[0] + 1)
    every = math.ceil(len(sizes) / _TICKS)
    return CurvePicture(
        title,
        f"{title}: " + "; ".join(_said(name, sizes, rates, across, up) for name, rates in lines),
        tuple(
            CurveLine(
                number,
                name,
                tuple((_across(size, sizes), _up(rate, low, high)) for size, rate in zip(sizes, rates, strict=True)),
                tuple(f"{name}: {across(size)}, {up(rate)}" for size, rate in zip(sizes, rates, strict=True)),
            )
            for number, (name, rates) in enumerate(lines)
        ),
        tuple((_across(size, sizes), across(size)) for size in sizes[::every]),
        tuple((_up(tick, low, high), up(tick)) for tick in (10.0**decade for decade in decades) if tick <= high),
    )


def _across(size: int, sizes: Sequence[int]) -> float:
    share = math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _up(rate: float, low: float, high: float) -> float:
    share = math.log(rate / low) / math.log(high / low)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _said(
    name: str, sizes: Sequence[int], rates: Sequence[float], across: Callable[[int], str], up: Callable[[float], str]
) -> str:
    return f"{name} from {up(rates[0])} at {across(sizes[0])} to {up(rates[-1])} at {across(sizes[-1])}"


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.4g} GB/s"


LANES = 3
"""Lanes of collectives below a rank's program; what runs beside more than that shares the last."""

COMPUTE, WAITING, EXPOSED, COLLECTIVE = range(4)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a rank's time, in nanoseconds: its kind, the call that it is or is spent on, and what else it is.

    The call is its op (or nothing), its number, and its group as a place among those of the timeline.
    """

    row: int
    lane: int
    kind: int
    op: str
    number: int
    said: str
    begin: int
    end: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Spans:
    """The rows' ranks, the ops by number, every span, the whole time in nanoseconds, one step of it, what is left out.

    Spans stand in order of rows, lanes and times. ``groups`` are the groups that spans name, each with the number of
    those of its kind, for which it stands.
    """

    ranks: tuple[int, ...]
    ops: tuple[str, ...]
    spans: tuple[Span, ...]
    end: int
    step: tuple[int, int] | None = None
    note: str = ""
    groups: tuple[tuple[Group, int], ...] = ()


def spans_document(spans: Spans) -> dict[str, object]:
    """The timeline as JSON; times in microseconds."""
    ops = {op: place for place, op in enumerate(spans.ops)}
    texts: dict[str, int] = {"": 0}
    numbers = [texts.setdefault(safe(span.said), len(texts)) for span in spans.spans]
    return {
        "ranks": spans.ranks,
        "ops": [safe(op) for op in spans.ops],
        "groups": [safe(group_name(group)) for group, _ in spans.groups],
        "texts": list(texts),
        "end": spans.end / 1e3,
        "step": None if spans.step is None else [edge / 1e3 for edge in spans.step],
        "row": packed(_column([span.row for span in spans.spans], np.uint16)),
        "lane": packed(_column([span.lane for span in spans.spans], np.uint8)),
        "kind": packed(_column([span.kind for span in spans.spans], np.uint8)),
        "op": packed(_column([ops[span.op] if span.op else 0 for span in spans.spans], np.uint16)),
        "group": packed(_column([span.group for span in spans.spans], np.uint16)),
        "number": packed(_column([span.number for span in spans.spans], np.uint32)),
        "said": packed(_column(numbers, np.uint32)),
        "begin": packed(_column([span.begin / 1e3 for span in spans.spans], np.float64)),
        "end_of": packed(_column([span.end / 1e3 for span in spans.spans], np.float64)),
    }


def _column(values: Sequence[float], kind: type[np.generic]) -> npt.NDArray[np.generic]:
    return np.array(values, kind)


def laned(begins: Sequence[int], ends: Sequence[int]) -> Iterator[int]:
    """A lane for each stretch, in order of begins: the first that is free, from 1; the last where none is."""
    free = [0] * LANES
    for begin, end in zip(begins, ends, strict=True):
        lane = next((place for place, until in enumerate(free) if until <= begin), LANES - 1)
        free[lane] = max(free[lane], end)
        yield lane + 1
