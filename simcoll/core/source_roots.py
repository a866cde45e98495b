"""Tells the user's own files from those of torch, simcoll, the standard library and installed packages.

The folders of packages are those of the process that ran: another one, which reads its stacks, may have simcoll from
another folder. So ranks write their folders down.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from simcoll.core.record import FRAME_LIMIT, UNKNOWN_SOURCE, Source

SKIP: Final = 0
INSTALLED: Final = 1
OWN: Final = 2

SCENARIO: Final = ".toml"
"""A scenario is the user's program wherever it lies, simcoll's own examples too."""


def folder(path: str) -> str:
    """The folder's path, resolved, as the beginning of the paths of the files in it."""
    return os.path.join(os.path.realpath(path), "")


@lru_cache(maxsize=1)
def torch_folder() -> str:
    """The folder of torch, found without importing it; a path that nothing begins with where there is none."""
    found = importlib.util.find_spec("torch")
    return "\0" if found is None or not found.origin else _around(found.origin)


@lru_cache(maxsize=1)
def simcoll_folders() -> tuple[str, ...]:
    """The folders of simcoll's packages, which lie side by side in a checkout."""
    names = ("simcoll", "simcoll.verifier", "simcoll.backends", "simcoll.reports")
    return tuple(package_folder(name) for name in names)


def package_folder(name: str) -> str:
    """The folder of one of simcoll's own packages, as the beginning of the paths of its modules."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        raise ModuleNotFoundError(f"simcoll is not installed as a whole: there is no package {name}", name=name)
    return _around(spec.origin)


def _around(file: str) -> str:
    """The folder of a file, which may be a link alone, as installers and build tools make them."""
    return folder(os.path.dirname(os.path.realpath(file)))


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders by which the process of one rank tells its user's own files from others."""

    torch: tuple[str, ...]
    simcoll: tuple[str, ...]
    packages: tuple[str, ...]
    library: tuple[str, ...]
    _kinds: dict[str, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    def kind_of(self, filename: str) -> int:
        """``OWN`` for the user's own code, ``INSTALLED`` for other packages', ``SKIP`` for files not reported."""
        kind = self._kinds.get(filename)
        if kind is None:
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            kind = self._kinds[filename] = self._look(filename)
        return kind

    def is_torch_or_simcoll(self, filename: str) -> bool:
        """True for a file of torch's or of simcoll's."""
        return os.path.realpath(filename).startswith((*self.torch, *self.simcoll))

    def _look(self, filename: str) -> int:
        if filename.startswith("<"):
            return SKIP
        if filename.endswith(SCENARIO):
            return OWN
        try:
            path = os.path.realpath(filename)
        except ValueError:
            # A file that a damaged record names.
            return SKIP
        if path.startswith((*self.torch, *self.simcoll)):
            return SKIP
        if path.startswith(self.packages) or any(name in path for name in _ANYWHERE):
            return INSTALLED
        return SKIP if path.startswith(self.library) else OWN

    def document(self) -> dict[str, object]:
        """The folders as JSON values."""
        return {name: list(getattr(self, name)) for name in _ROOTS}

    @classmethod
    def of(cls, document: object) -> Roots:
        """The folders of a :meth:`document`; this process's own where it is malformed, or states no such folder."""
        torch, simcoll, packages, library = (_folders(document, name) for name in _ROOTS)
        return cls(torch, simcoll, packages, library) if torch or simcoll else own_roots()


_ROOTS: Final = ("torch", "simcoll", "packages", "library")
_KINDS: Final = 1 << 16
_MOST_FOLDERS: Final = 16


def _folders(document: object, name: str) -> tuple[str, ...]:
    value = document.get(name) if isinstance(document, dict) else None
    named = value[:_MOST_FOLDERS] if isinstance(value, list) else []
    # A folder that ends without a separator is the beginning of other names too.
    return tuple(one for one in named if isinstance(one, str) and len(one) > 1 and one.endswith(os.sep))


@lru_cache(maxsize=1)
def own_roots() -> Roots:
    """The folders of this process."""
    paths = sysconfig.get_paths()
    packages, library = (
        tuple(dict.fromkeys(folder(paths[name]) for name in names))
        for names in (("purelib", "platlib"), ("stdlib", "platstdlib"))
    )
    return Roots((torch_folder(),), simcoll_folders(), packages, library)


def kind_of(filename: str) -> int:
    """The kind of a file to this process (:meth:`Roots.kind_of`)."""
    return own_roots().kind_of(filename)


_ANYWHERE = tuple(os.path.join(os.sep, name, "") for name in ("site-packages", "dist-packages"))
"""Names of folders of packages that are not this interpreter's own: a virtual environment that sees those of the
system, a user's own, those that a cluster's modules put on PYTHONPATH."""

OWN_FRAMES: Final = 8
"""Frames of the user's own code that a stack keeps."""


def line_of_stack(frames: Iterable[tuple[int, Source]]) -> Source:
    """The line of the program that made a call, with its callers; unknown where no frame is the program's.

    Frames come innermost first, each with the kind of its file. The innermost of the user's own code is the line; where
    there is none, the innermost of an installed package is. Packages beyond the outermost own frame are left out.
    """
    kept: list[tuple[int, Source]] = []
    own: list[int] = []
    for kind, source in frames:
        if kind == OWN:
            own.append(len(kept))
        if kind != SKIP and (kind == OWN or len(kept) < FRAME_LIMIT):
            kept.append((kind, source))
        if len(own) == OWN_FRAMES or (own and len(kept) >= FRAME_LIMIT):
            break
    if not kept:
        return UNKNOWN_SOURCE
    first, end = (own[0], own[-1] + 1) if own else (0, len(kept))
    stack = [source for _, source in kept]
    return replace(stack[first], callers=tuple(stack[first + 1 : end]), through=tuple(stack[:first]))
