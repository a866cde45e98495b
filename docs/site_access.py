"""A Sphinx extension: what screen readers and keyboards need in a page, and the theme does not write.

Boxes that scroll sideways can be reached by the keyboard, and the captions of the navigation state their level.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SCROLLS = re.compile(r'<(?=pre>|div class="table-wrapper)(pre|div)')


def complete(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Correct the HTML that Sphinx and the theme are about to write."""
    if "body" in context:
        context["body"] = SCROLLS.sub(r'<\1 tabindex="0"', context["body"])
    if "furo_navigation_tree" in context:
        tree = context["furo_navigation_tree"]
        context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("html-page-context", complete, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}
