"""A Sphinx extension: the tables of an index page are the site's navigation, so that each page is listed once.

In the pages that `navigation_pages` names, what the first column of a table links to becomes a toctree, with the
heading above the table as its caption. Sphinx warns of a page that is in none. A code host shows the table alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

LINK = re.compile(r"\[[^\]]+\]\(([^)#:]+\.md)\)")


def toctree(caption: str, pages: list[str]) -> str:
    """A hidden toctree in MyST's words."""
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])


def toctrees(text: str) -> Iterator[str]:
    """One toctree for each heading whose tables link to pages in their first column."""
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        heading, *lines = part.splitlines()
        rows = [line.split("|") for line in lines if line.startswith("| ")]
        if pages := [page for row in rows for page in LINK.findall(row[1])]:
            yield toctree(heading, pages)


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add to an index page the toctrees that its tables stand for."""
    if docname in app.config.navigation_pages:
        source[0] = "\n\n".join([source[0], *toctrees(source[0])]) + "\n"


def lead_to_root(app: Sphinx, exception: Exception | None) -> None:
    """Write a page at the site's root that leads to the root document."""
    page = Path(app.outdir) / "index.html"
    to = f"{app.config.root_doc}.html"
    if exception is None:
        page.write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{app.config.html_title}</title>'
            f'<meta http-equiv="refresh" content="0; url={to}"><p><a href="{to}">Documentation</a></p></html>\n',
            encoding="utf-8",
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_config_value("navigation_pages", [], "env", list)
    app.connect("source-read", add_toctrees)
    app.connect("build-finished", lead_to_root)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
