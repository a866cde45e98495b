"""The tables that benchmarks print: they fit a terminal of 80 columns, and no heading is cut."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.table import Table

WIDTH = 80
"""The columns of the narrowest terminal."""


def bench_table(title: str, *headings: str, left: Collection[str] = ()) -> Table:
    """A table without rows. The words of a heading stand below each other, so that cells make a column's width; those
    ``left`` are texts, the others numbers.
    """
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0))
    for heading in headings:
        made.add_column(
            heading.replace(" ", "\n"), justify="left" if heading in left else "right", vertical="bottom", no_wrap=True
        )
    return made
