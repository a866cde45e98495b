"""Tables that lose nothing: where the columns do not fit beside each other, each row is lines of its own."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from simcoll.core.text import Outside

_LEAST = 8
"""Cells that may be folded are not made narrower than this."""


class Rows(Table):
    """A table of texts that is never cut: what does not fit the width is listed, a row after the other.

    Its title is folded where the line ends, not where the table does.
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
    """What stands above each column, on one line."""
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
