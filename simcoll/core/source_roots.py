"""Tells the user's own files from those of torch, simcoll, the standard library and installed packages."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from functools import lru_cache
from typing import Final

SKIP: Final = 0
INSTALLED: Final = 1
OWN: Final = 2

SCENARIO: Final = ".toml"
"""A scenario is the user's program wherever it lies, simcoll's own examples too."""


def folder(path: str) -> str:
    """The path, resolved, as the beginning of the paths of what lies in it."""
    return os.path.join(os.path.realpath(path), "")


@lru_cache(maxsize=1)
def torch_folder() -> str:
    """Where torch lies, without importing it; a path that nothing begins with where there is none."""
    found = importlib.util.find_spec("torch")
    return "\0" if found is None or not found.origin else _around(found.origin)


@lru_cache(maxsize=1)
def simcoll_folders() -> tuple[str, ...]:
    """Where simcoll's packages lie; they stand side by side in a checkout."""
    names = ("simcoll", "simcoll.verifier", "simcoll.backends", "simcoll.reports")
    return tuple(package_folder(name) for name in names)


def package_folder(name: str) -> str:
    """Where one of simcoll's own packages lies, as the beginning of the paths of its modules."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        raise ModuleNotFoundError(f"simcoll is not installed as a whole: there is no package {name}", name=name)
    return _around(spec.origin)


def _around(file: str) -> str:
    """The folder of a file, which may be a link alone, as installers and build tools make them."""
    return folder(os.path.dirname(os.path.realpath(file)))


@lru_cache(maxsize=4096)
def kind_of(filename: str) -> int:
    """``OWN`` for the user's own code, ``INSTALLED`` for other packages', ``SKIP`` for what a report passes over."""
    if filename.startswith("<"):
        return SKIP
    if filename.endswith(SCENARIO):
        return OWN
    path = os.path.realpath(filename)
    if path.startswith((torch_folder(), *simcoll_folders())):
        return SKIP
    if path.startswith(_PACKAGES) or any(name in path for name in _ANYWHERE):
        return INSTALLED
    return SKIP if path.startswith(_LIBRARY) else OWN


_PACKAGES = tuple(folder(path) for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_ANYWHERE = tuple(os.path.join(os.sep, name, "") for name in ("site-packages", "dist-packages"))
"""Names of folders of packages that are not this interpreter's own: a virtual environment that sees those of the
system, a user's own, what a cluster's modules put on PYTHONPATH."""
_LIBRARY = tuple(folder(path) for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
