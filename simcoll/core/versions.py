"""Versions of simcoll and its dependencies, read without importing them."""

from __future__ import annotations

import platform
from importlib import metadata

from simcoll import __version__

_NEEDED = ("torch", "jinja2", "networkx", "numpy", "rich")


def version_of(name: str) -> str | None:
    """The version of simcoll or of an installed distribution; None where there is none."""
    if name == "simcoll":
        return __version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions by name, simcoll's and Python's first; None for a package that is not installed."""
    return {
        "simcoll": __version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in _NEEDED},
    }
