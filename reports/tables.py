"""Tables that lose nothing: where the columns do not fit beside each other, each row is lines of its own.

Pictures as plain lines, for ``--plain``: no boxes, no colours, ASCII, one thing after the other.

All views are read off the renderables of rich, so that none needs a second form: panels and trees
become indented lines, a row of a table one line with the name of each column.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.protocol import rich_cast
from rich.segment import Segment
from rich.styled import Styled
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from simcoll.core.text import Outside

_LEAST = 8
"""Cells that may be folded are not made narrower than this."""


class Rows(Table):
    """A table of texts that is never cut: one that does not fit the width is listed, a row after the other.

    Its title is folded at the end of the line, not of the table.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if _needed(self, console, options) > options.max_width:
            yield from _listed(self)
            return
        title, self.title = self.title, None
        try:
            if title is not None:
                yield Outside(text_of(title), "table.title", overflow="fold")
            yield from super().__rich_console__(console, options)
        finally:
            self.title = title


def headings(table: Table) -> list[str]:
    """The heading of each column, on one line."""
    return [" ".join(text_of(column.header).split()) for column in table.columns] if table.show_header else []


def text_of(cell: RenderableType) -> str:
    """The text of a cell that is a text; nothing of other renderables."""
    return cell.plain if isinstance(cell, Text) else cell if isinstance(cell, str) else ""


def _needed(table: Table, console: Console, options: ConsoleOptions) -> int:
    """The columns that a table takes at least."""
    _, right, _, left = table.padding
    edges = (len(table.columns) + 1 if table.box else 0) + len(table.columns) * (left + right)
    edges -= 0 if table.pad_edge or not table.columns else left + right
    return edges + sum(_width(column, console, options, table) for column in table.columns)


def _width(column: Column, console: Console, options: ConsoleOptions, table: Table) -> int:
    cells = [*([column.header] if table.show_header else []), *column.cells]
    unlimited = options.update(max_width=1 << 16)
    found = [Measurement.get(console, unlimited, cell) for cell in cells]
    if column.no_wrap:
        return max((one.maximum for one in found), default=0)
    return min(max((one.minimum for one in found), default=0), _LEAST)


def _listed(table: Table) -> Iterator[RenderableType]:
    """The first cell of a row, and below it the others with their headings."""
    names = headings(table)
    if table.title is not None:
        yield Outside(text_of(table.title), "bold", overflow="fold")
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        yield _worded(first)
        for name, cell in zip(names[1:] or [""] * len(others), others, strict=True):
            if text_of(cell):
                yield Padding(_worded(cell, f"{name}: " if name else ""), (0, 0, 0, 2))
    if table.caption is not None:
        yield Outside(text_of(table.caption), overflow="fold")


def _worded(cell: RenderableType, label: str = "") -> Text:
    """A cell below its label, folded where the line ends."""
    text = Outside(label, "dim", overflow="fold")
    return text.append_text(cell) if isinstance(cell, Text) else text.append(text_of(cell), "not dim")


_STEP = 2
_HANGING = 4


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line before it is folded; ``fixed``: each character has its place, as in a picture made of letters."""

    indent: int
    text: str
    fixed: bool = False

    def deeper(self, by: int = _STEP) -> TextLine:
        """The same line, farther to the right."""
        return TextLine(self.indent + by, self.text, self.fixed)


@dataclass(frozen=True, slots=True)
class Linear:
    """A picture that draws itself as plain lines of ASCII in the width it is given."""

    picture: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in _lines(self.picture, console, options):
            for text in _folded(line, options.max_width):
                yield Text(text, no_wrap=True, overflow="ignore")


def _folded(line: TextLine, width: int) -> list[str]:
    text = line.text.encode("ascii", "backslashreplace").decode("ascii").rstrip()
    indent = " " * min(line.indent, width // 3)
    if line.fixed or len(indent) + len(text) <= width:
        room = max(width - len(indent), 1)
        return [indent + text[place : place + room] for place in range(0, len(text), room)] or [""]
    hanging = indent + " " * min(_HANGING, width // 6)
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)


def _lines(picture: RenderableType, console: Console, options: ConsoleOptions) -> Iterator[TextLine]:
    """Yields the lines that a renderable shows."""
    picture = rich_cast(picture)
    if isinstance(picture, (Text, str)):
        fixed = isinstance(picture, Text) and bool(picture.no_wrap)
        yield from (TextLine(0, text, fixed) for text in text_of(picture).split("\n"))
    elif isinstance(picture, Syntax):
        yield from (TextLine(0, text) for text in picture.code.splitlines())
    elif isinstance(picture, Table):
        yield from _table(picture, console, options)
    elif isinstance(picture, Tree):
        yield from _tree(picture, console, options)
    elif isinstance(picture, Panel):
        yield TextLine(0, "")
        yield from _lines(picture.title or "", console, options)
        yield from (line.deeper() for line in _lines(picture.renderable, console, options))
    elif isinstance(picture, Padding):
        inner = options.update_width(max(options.max_width - picture.left, 1))
        yield from (line.deeper(picture.left) for line in _lines(picture.renderable, console, inner))
        yield from (TextLine(0, "") for _ in range(picture.bottom))
    elif isinstance(picture, Styled):
        yield from _lines(picture.renderable, console, options)
    elif isinstance(picture, Group):
        for part in picture.renderables:
            yield from _lines(part, console, options)
    else:
        yield from _own(picture, console, options)


def _own(picture: RenderableType, console: Console, options: ConsoleOptions) -> Iterator[TextLine]:
    """The parts of a view that draws itself, or its drawing."""
    parts = list(picture.__rich_console__(console, options))  # type: ignore[union-attr]
    if any(isinstance(part, Segment) for part in parts):
        drawn = console.render_lines(picture, options, pad=False)
        yield from (TextLine(0, "".join(segment.text for segment in line)) for line in drawn)
    else:
        for part in parts:
            yield from _lines(part, console, options)


def _table(table: Table, console: Console, options: ConsoleOptions) -> Iterator[TextLine]:
    """A row is a line; where a cell holds several, they stand below its first cell."""
    if table.title is not None:
        yield from _lines(table.title, console, options)
    names = headings(table)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        parts = [list(_lines(cell, console, options)) for cell in cells]
        if all(len(part) < 2 for part in parts):
            yield TextLine(
                _STEP if table.title is not None else 0, _row([part[0].text for part in parts if part], names)
            )
        else:
            yield from _stacked(parts)
    if table.caption is not None:
        yield from _lines(table.caption, console, options)


def _row(cells: list[str], names: list[str]) -> str:
    """The cells with the names of their columns; a lone label and its value side by side."""
    if names:
        return "; ".join(f"{name} {cell}".strip() for name, cell in zip_longest(names, cells, fillvalue="") if cell)
    label, *rest = cells
    if len(rest) == 1 and label:
        return f"{label} {rest[0]}" if label.endswith(":") else f"{label}: {rest[0]}"
    return "; ".join(filter(None, cells))


def _stacked(parts: list[list[TextLine]]) -> Iterator[TextLine]:
    """The short cells on a line, the lines of the long ones below it."""
    label = "; ".join(part[0].text for part in parts if len(part) == 1 and part[0].text)
    if label:
        yield TextLine(0, f"{label}:")
    for part in parts:
        if len(part) > 1:
            yield from (line.deeper() for line in part)


def _tree(tree: Tree, console: Console, options: ConsoleOptions) -> Iterator[TextLine]:
    yield from _lines(tree.label, console, options)
    for child in tree.children:
        yield from (line.deeper() for line in _tree(child, console, options))
