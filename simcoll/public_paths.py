"""Lazy public names, and redirects from the former paths of modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "simcoll.backends.membership": "simcoll.backends.simulated.requests",
    "simcoll.backends.object_calls": "simcoll.backends.simulated.object_calls",
    "simcoll.backends.outcome": "simcoll.backends.engine.outcome",
    "simcoll.calibration": "simcoll.estimator.calibration",
    "simcoll.estimate_value": "simcoll.core.estimate",
    "simcoll.estimating": "simcoll.estimator.time_estimator",
    "simcoll.exploring": "simcoll.simulation.explore",
    "simcoll.flow": "simcoll.estimator.flow.engine",
    "simcoll.measured": "simcoll.estimator.measured",
    "simcoll.pytest_plugin": "simcoll.testing.plugin",
    "simcoll.rank_threads": "simcoll.backends.threaded.run",
    "simcoll.verifier.finding": "simcoll.verifier.findings.finding",
    "simcoll.verifier.rules": "simcoll.verifier.findings.rules",
}
"""Documented modules that have moved, by their former names; an import of one gives the module of its new name."""


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A package's ``__getattr__``: imports a name's module when the name is first used.

    ``homes`` has the module of each name, and behind a colon the name that it has there where that is another one;
    with no name behind the colon, the name is the module itself.
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, colon, attribute = homes[name].partition(":")
        home = import_module(module)
        value: object = home if colon and not attribute else getattr(home, attribute or name)
        setattr(sys.modules[package], name, value)  # found at once the next time: `simcoll.estimate` is called in loops
        return value

    return find


class _Moved:
    """Finds and loads the modules of `MOVED`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a former name; None for any other."""
        # The import system asks a loader for create_module and exec_module only.
        return ModuleSpec(name, self) if name in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: an empty module, whose place is taken at once."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in its place, as the import system allows."""
        sys.modules[module.__name__] = import_module(MOVED[module.__name__])


def find_moved_modules() -> None:
    """Let imports of former names find the modules; asked after all else, so that other imports take no longer."""
    sys.meta_path.append(_Moved())
