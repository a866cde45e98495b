"""The shell of every HTML page: template, style sheet and scripts in one file, and its content-security policy.

The policy names the page's own style sheet and script by their hashes, so that the browser runs nothing else, even if
something were not escaped.

:func:`chart_data` packs a chart for the page: columns of numbers, deflated and in base64, and texts that are referred
to by number.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from simcoll import __version__
from simcoll.core.ranges import ranks_text
from simcoll.core.text import safe
from simcoll.reports.overview import letters_of
from simcoll.verifier.findings.describe import group_name
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import STRAGGLER
from simcoll.verifier.views.chart import SEVERITIES, STEPS, Chart, Spot, coarser

_SCRIPTS = (
    *("chart.js", "paint.js", "words.js", "theme.js", "surface.js", "timeline.js"),
    *("spans.js", "spanpaint.js", "spantimeline.js", "start.js"),
)

_LONG, _HEAD = 400, 240
"""Characters from which on a text is folded, and how many of them are seen then."""

_WIDE = 1700
"""Units of a picture, whose letters are 11 of them high."""

_PATH = re.compile(r"\S/\S*/\S|(?<!\S)/\S+/\S")


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of a page: an SVG document, which the browser shows as an image and runs nothing of; and its words."""

    title: str
    svg: str
    text: str

    @property
    def wide(self) -> bool:
        """True if its words would be too small to be read if it were as narrow as a page."""
        found = re.search(r'viewBox="0 0 (\d+)', self.svg[:500])
        return found is not None and int(found[1]) > _WIDE


@dataclass(frozen=True, slots=True)
class PageTable:
    """Rows of texts under their headings; the first ``texts`` columns stand to the left, numbers to the right.

    ``note`` lists omissions, or explains the table; a ``folded`` table is closed at first.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    note: str = ""
    folded: bool = False


class PricedPage(TypedDict):
    """The parts that a report's page has besides the report where the job is priced."""

    figures: Sequence[Figure]
    tables: Sequence[PageTable]


def on_one_scale(figures: Sequence[Figure]) -> list[Figure]:
    """The pictures with room to the right, so that all of a page are as wide, and drawn on one scale."""
    sizes = [re.search(r'viewBox="0 0 ([0-9]+) ([0-9]+)"', figure.svg[:500]) for figure in figures]
    widest = max((int(found[1]) for found in sizes if found), default=0)
    return [
        replace(figure, svg=figure.svg.replace(found[0], f'viewBox="0 0 {widest} {found[2]}"', 1)) if found else figure
        for figure, found in zip(figures, sizes, strict=True)
    ]


def _encoded(svg: str) -> Markup:
    return Markup(b64encode(svg.encode()).decode("ascii"))  # noqa: S704  # base64


def page(template: str, figures: Sequence[Figure], **values: object) -> str:
    """One self-contained page from a template, with the values that all templates get."""
    style, script = _part("page.css"), _script()
    return (
        _environment()
        .get_template(template)
        .render(
            policy=_policy(style, script, images=bool(figures)),
            style=Markup(style),  # noqa: S704  # files of this package, into which nothing is filled in
            script=Markup(script),  # noqa: S704
            version=__version__,
            figures=[(figure, _encoded(figure.svg)) for figure in on_one_scale(figures)],
            licences=_part("vendor/drawing.LICENSES.txt"),
            **values,
        )
    )


@cache
def _environment() -> Environment:
    """The environment of templates: all that they write is made harmless as text, then escaped as HTML."""
    made = Environment(
        loader=FunctionLoader(_part),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    made.filters["isolated"] = _isolated
    made.filters["folded"] = _folded
    return made


def _isolated(text: str) -> Markup:
    """A text whose direction of writing does not reach beyond it."""
    return Markup("<bdi>{}</bdi>").format(safe(text))


def _folded(text: str) -> Markup:
    """A text; most of a long one is folded away; a path breaks behind its slashes."""
    whole = safe(text)
    if len(whole) <= _LONG:
        return Markup("/<wbr>").join(whole.split("/")) if _PATH.search(whole) else escape(whole)
    more = f" ... {len(whole) - _HEAD:,} more characters"
    return Markup(
        '<details class="long"><summary>{}<span class="more">{}</span></summary><div>{}</div></details>'
    ).format(whole[:_HEAD], more, whole[_HEAD:])


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


MOST_CHARACTERS = 6_000_000
"""The limit of a chart's data: a page of less than 10 MB is still sent by mail."""

_MOST_NAMED = 50_000
_TYPES = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "float64": "f64"}
_UNNAMED = "frames around some of the calls that findings name are left out: there are too many"


def chart_data(chart: Chart, findings: Sequence[Finding]) -> tuple[str, tuple[str, ...]]:
    """The chart as JSON for a script element, and its omissions in words.

    Columns are put together until it is small enough.
    """
    while len(text := script_json(_document(chart, findings))) > MOST_CHARACTERS:
        smaller = coarser(chart)
        if len(smaller.columns) == len(chart.columns) and bool(smaller.late.size) == bool(chart.late.size):
            break
        chart = smaller
    named = sum(len(spot.places) for spot in chart.spots)
    return text, (*chart.notes, *([_UNNAMED] if named > _MOST_NAMED else ()))


def script_json(value: object) -> str:
    """JSON that no parser of HTML takes for an end, a comment or a line break of anything."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def chart_ops(chart: Chart) -> list[str]:
    """The ops of a chart in the order of their numbers, of which 0 is none."""
    return list(dict.fromkeys(("", *(kind.op for kind in chart.kinds))))


def chart_letters(chart: Chart) -> dict[str, str]:
    """A letter for each op."""
    return letters_of(op for op in chart_ops(chart) if op)


def _document(chart: Chart, findings: Sequence[Finding]) -> dict[str, object]:
    texts: dict[str, int] = {"": 0}
    ops = {op: place for place, op in enumerate(chart_ops(chart))}
    letters = chart_letters(chart)
    return {
        "ranks": chart.ranks,
        "groups": [(safe(group_name(group)), ranks_text(group.ranks), number) for group, number in chart.groups],
        "ops": [safe(op) for op in ops],
        "letters": [letters.get(op, "") for op in ops],
        "kinds": [
            (SEVERITIES.index(kind.mark), ops[kind.op], _number(texts, kind.said), _number(texts, kind.source))
            for kind in chart.kinds
        ],
        "texts": [safe(text) for text in texts],
        "findings": [finding.code for finding in findings],
        "spots": [
            {"finding": spot.finding, "column": spot.column, "places": spot.places} for spot in _few(chart.spots)
        ],
        "slow": _slow(chart, findings),
        "total": chart.total,
        "late_steps": STEPS,
        **_arrays(chart),
    }


def _slow(chart: Chart, findings: Sequence[Finding]) -> list[dict[str, int]]:
    """The findings that are at no call, but in how late a rank came: the place of the first one that each names."""
    places = {rank: place for place, rank in enumerate(chart.ranks)}
    found = [(number, one.culprits) for number, one in enumerate(findings) if one.code == STRAGGLER.code]
    return [
        {"finding": number, "place": places[culprits[0]]}
        for number, culprits in found
        if chart.late.size and culprits and culprits[0] in places
    ]


def _arrays(chart: Chart) -> dict[str, object]:
    columns = chart.columns
    known = [column.time_ns for column in columns if column.time_ns]
    begin = min(known, default=0)
    times = [(column.time_ns - begin) / 1e9 if column.time_ns else -1.0 for column in columns]
    return {
        "cells": packed(chart.cells),
        "rows": packed(chart.rows),
        "line": packed(np.array([column.line for column in columns], np.uint32)),
        "number": packed(np.array([column.number for column in columns], np.uint32)),
        "message": packed(np.array([column.message for column in columns], np.uint8)),
        "span": packed(np.array([column.span for column in columns], np.uint32)),
        "time": packed(np.array(times, np.float64)),
        "late": packed(chart.late) if chart.late.size else None,
    }


def packed(numbers: npt.NDArray[Any]) -> dict[str, str]:
    """Numbers as chart.js unpacks them: little end first, deflated, in base64."""
    plain = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    return {"type": _TYPES[numbers.dtype.name], "data": b64encode(zlib.compress(plain.tobytes())).decode("ascii")}


def _number(texts: dict[str, int], text: str) -> int:
    return texts.setdefault(text, len(texts))


def _few(spots: Sequence[Spot]) -> list[Spot]:
    """As many spots as a page can hold."""
    counts = np.cumsum([len(spot.places) for spot in spots])
    return [spot for spot, count in zip(spots, counts, strict=True) if count <= _MOST_NAMED]
