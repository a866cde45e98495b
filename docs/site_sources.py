"""A Sphinx extension: a link to a file or folder of the checkout that is no page opens it in the site, highlighted.

On a code host such links show the file. Sphinx would make downloads of files and refuse folders. A folder with a
README.md that is a page leads there; any other becomes a page that lists its files. What does not exist is left to
MyST, which warns.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

Page = tuple[str, dict[str, Any], str]
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".xml": "xml", ".sh": "bash", ".yaml": "yaml"}
"""What a reader would rather see than save, by suffix, and Pygments' name of it."""


def shown(path: Path) -> bool:
    """Whether it is a file that becomes a page."""
    return path.is_file() and path.suffix in LANGUAGES


def page_name(path: Path, checkout: Path) -> str:
    """The name of the page that shows it."""
    return (path / "index" if path.is_dir() else path).relative_to(checkout).as_posix()


def link_sources(app: Sphinx, doctree: nodes.document) -> None:
    """Point links to files and folders at the pages that will show them."""
    checkout, docname = Path(app.srcdir).resolve(), app.env.docname
    kinds = (addnodes.download_reference, addnodes.pending_xref)
    for node in [node for kind in kinds for node in doctree.findall(kind) if node.get("reftype") == "myst"]:
        path = Path(app.env.relfn2path(str(node["reftarget"]), docname)[1]).resolve()
        if node.get("refdomain") == "doc" or not path.is_relative_to(checkout):
            continue
        readme = page_name(path / "README", checkout)
        if path.is_dir() and readme in app.env.found_docs:
            node.replace_self(page_link(node, readme))
        elif path.is_dir() or shown(path):
            uri = app.builder.get_relative_uri(docname, page_name(path, checkout))
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True, shows=str(path)))


def page_link(node: nodes.Element, docname: str) -> addnodes.pending_xref:
    """A link to a page, in MyST's words."""
    return addnodes.pending_xref(
        "", *node.children, **{**node.attributes, "refdomain": "doc", "reftarget": docname, "reftargetid": None}
    )


def source_pages(app: Sphinx) -> Iterator[Page]:
    """A page for each file that is linked to, and for each linked folder and its files."""
    if not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    doctrees = map(app.env.get_doctree, app.env.found_docs)
    linked = {Path(node["shows"]) for tree in doctrees for node in tree.findall(nodes.reference) if "shows" in node}
    inside = {folder: sorted(filter(shown, folder.iterdir())) for folder in linked if folder.is_dir()}
    for folder, paths in sorted(inside.items()):
        items = (f'<li><a href="{html.escape(path.name)}.html">{html.escape(path.name)}</a></li>' for path in paths)
        yield page(app, folder, f"<ul>{''.join(items)}</ul>")
    for path in sorted(filter(Path.is_file, linked.union(*inside.values()))):
        text = path.read_text(encoding="utf-8")
        yield page(app, path, app.builder.highlighter.highlight_block(text, LANGUAGES[path.suffix]))


def page(app: Sphinx, path: Path, body: str) -> Page:
    """What Sphinx writes a page from that no document stands behind."""
    name = page_name(path, Path(app.srcdir).resolve())
    title = html.escape(name.removesuffix("/index"))
    return name, {"title": title, "body": f"<section><h1>{title}</h1>{body}</section>"}, "page.html"


class FolderNavigation:
    """Makes the navigation of pages that show files once for each folder: no such page has a place of its own in it."""

    def __init__(self) -> None:
        self._made: dict[str, Callable[..., str]] = {}

    def share(self, app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
        """Let a page that no document stands behind have the navigation that another page of its folder has."""
        if doctree is None and "toctree" in context:
            folder = name.rpartition("/")[0]
            context["toctree"] = self._made.setdefault(folder, functools.cache(context["toctree"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("doctree-read", link_sources, priority=100)  # before what copies downloads looks for them
    app.connect("html-collect-pages", source_pages)
    app.connect("html-page-context", FolderNavigation().share, priority=100)  # before the theme asks for it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
