"""A Sphinx extension: a Python name leads to where this site documents it, wherever its module is.

Docstrings and signatures name a class by the module that defines it (`simcoll.errors.ConfigurationError`) or as that
module imports it (`Outcome`). Users have it from `simcoll` or `simcoll.testing`, and by that name it is documented.
"""

from __future__ import annotations

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def find_by_last_name(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """The one documented object that has the last part of the name that Sphinx has not found."""
    if node.get("refdomain") != "py":
        return None
    python = env.domains.python_domain
    last = str(node["reftarget"]).rpartition(".")[2]
    found = [name for name in python.objects if name.rpartition(".")[2] == last]
    if len(found) != 1:
        return None
    return python.resolve_xref(env, str(node["refdoc"]), app.builder, "obj", found[0], node, content)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("missing-reference", find_by_last_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
