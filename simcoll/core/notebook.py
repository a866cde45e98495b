"""Values as HTML for notebooks (IPython's ``_repr_html_``): a table, every character of it escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A title, and a table whose first column heads its rows."""
    top = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in head)
    body = "".join(_row(row) for row in rows)
    return f"<table><caption>{escape(title)}</caption>{f'<tr>{top}</tr>' if top else ''}{body}</table>"


def _row(cells: Sequence[str]) -> str:
    first, *rest = cells
    others = "".join(f"<td style='text-align: left'>{escape(cell)}</td>" for cell in rest)
    return f"<tr><th scope='row'>{escape(first)}</th>{others}</tr>"
