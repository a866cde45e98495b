"""What every page of simcoll has: its templates, style sheet and scripts in one file, and the policy that guards it.

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
from typing import TypedDict

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from simcoll import __version__
from simcoll.core.text import safe

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
        """Whether its words would be too small to be read if it were as narrow as a page."""
        found = re.search(r'viewBox="0 0 (\d+)', self.svg[:500])
        return found is not None and int(found[1]) > _WIDE


@dataclass(frozen=True, slots=True)
class PageTable:
    """Rows of texts under their headings; the first ``texts`` columns stand to the left, numbers to the right.

    ``note`` says what is left out, or how the table is to be read; a ``folded`` table is closed at first.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    note: str = ""
    folded: bool = False


class PricedPage(TypedDict):
    """What a report's page has beside the report where the job is priced."""

    figures: Sequence[Figure]
    tables: Sequence[PageTable]


def page(template: str, figures: Sequence[Figure], **values: object) -> str:
    """One self-contained page from a template, with what all templates are given."""
    style, script = _part("page.css"), _script()
    return (
        _environment()
        .get_template(template)
        .render(
            policy=_policy(style, script, images=bool(figures)),
            style=Markup(style),  # noqa: S704  # files of this package, into which nothing is filled in
            script=Markup(script),  # noqa: S704
            version=__version__,
            figures=[(figure, Markup(b64encode(figure.svg.encode()).decode("ascii"))) for figure in figures],  # noqa: S704
            licences=_part("vendor/drawing.LICENSES.txt"),
            **values,
        )
    )


@cache
def _environment() -> Environment:
    """Everything that a template puts out is made harmless as text, and then escaped as HTML."""
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
    """A text, the most of which is folded away where it is long; a path breaks behind its slashes."""
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
