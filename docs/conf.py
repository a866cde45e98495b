"""How Sphinx makes a site of these pages: `make docs` writes it to build/docs, and any warning is an error.

The source folder is the checkout, not docs/, so that a link between a page and README.md or examples/ is the same
path here as on a code host. Nothing is loaded from the network, neither by the build nor by its pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

import simcoll  # noqa: E402

project = "simcoll"
version = release = simcoll.__version__
html_title = f"simcoll {version}"
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docs.site_access",
    "docs.site_navigation",
    "docs.site_python",
    "docs.site_sources",
]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [".*", "**/.*", "build", "dist", "benchmarks", "**/node_modules", "simcoll-out*"]
navigation_pages = ["docs/index", "docs/rules/README"]

nitpicky = True
nitpick_ignore_regex = [
    # What others document is not looked up: that would need the network.
    (r"py:.*", r"(collections|datetime|networkx|numpy|nx|os|pathlib|torch)\..*|Path|(simcoll\..*\.)?(Self|T)"),
    # Types that stand in signatures, of values that users hand on and never make.
    (
        r"py:class",
        r"Array|Choices|(Call|Cluster)Arguments|(Pricing)?Scenario|Spread|Trace|simcoll(\.[a-z_]+)+\.[A-Z]\w+",
    ),
]
default_role = "code"  # of docstrings, which quote names in single backticks too
myst_heading_anchors = 4  # of headings, as code hosts make them
smartquotes = False  # pages quote code and what programs print

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_use_index = False
