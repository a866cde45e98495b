"""The options of ``@pytest.mark.simcoll``: world size, backend, and the variants of a test.

Importing this imports neither numpy nor torch: it is used while tests are collected.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from simcoll.errors import ConfigurationError
from simcoll.testing.options import NAMES, Options, check_names

MARKER = "simcoll"

SIGNATURE = (
    "simcoll(world_size, backend=None, *, seed=0, seeds=None, explore=None, schedule=None, topology=None, sends=None,"
    " timeout=60, fail_on='warning'): run the test on every rank of a world, and fail it on any finding."
    " Lists of world_size, backend and seeds parametrise it."
)

_AXES = {"world_size": "world_size", "backend": "backend", "seeds": "seed"}
"""Options of the marker that may be lists, and the options of one run that they give values to."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A parametrisation of a test: ``option`` takes each of ``values``."""

    option: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The name of the test's parameter."""
        return f"simcoll_{self.option}"

    def ids(self) -> list[str]:
        """The ids of the variants in the test's name."""
        return [str(value) if self.option == "backend" else f"{self.option}={value}" for value in self.values]


def is_marked(node: pytest.Item) -> bool:
    """Whether a test runs on ranks."""
    return node.get_closest_marker(MARKER) is not None


def marker_options(node: pytest.Item) -> dict[str, Any]:
    """The options of a test's markers; those on the function override those on its class and module.

    Raises :class:`~simcoll.errors.ConfigurationError` for unknown options.
    """
    declared: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(MARKER))):
        if len(marker.args) > 2:
            raise ConfigurationError(
                f"{len(marker.args)} values without names: expected world_size and backend at most"
            )
        given = dict(zip(("world_size", "backend"), marker.args, strict=False))
        if twice := given.keys() & marker.kwargs.keys():
            raise ConfigurationError(f"{min(twice)} is given twice")
        check_names(marker.kwargs, {*NAMES, "seeds"})
        declared |= {**given, **marker.kwargs}
    return declared


def axes(declared: Mapping[str, Any]) -> Iterator[Axis]:
    """The parametrisations that the options of a marker ask for."""
    for name, option in _AXES.items():
        value = declared.get(name)
        if name == "seeds" and isinstance(value, int):
            raise ConfigurationError(
                f"seeds={value}: expected a list of seeds, such as range({value}); for one: seed={value}"
            )
        if isinstance(value, (list, tuple, range)):
            if not value:
                raise ConfigurationError(f"{name}={value!r}: expected at least one value")
            yield Axis(option, tuple(value))
        elif name == "seeds" and value is not None:
            raise ConfigurationError(f"seeds={value!r:.40}: expected a list of seeds")


def options_of(declared: Mapping[str, Any], chosen: Mapping[str, Any], *, seed: int, takes_comm: bool) -> Options:
    """The options of one variant: ``chosen`` on each axis, ``seed`` where the markers have none."""
    given = {name: value for name, value in declared.items() if name != "seeds" and value is not None}
    if "seeds" in declared and "seed" in declared:
        raise ConfigurationError("seed and seeds are both given")
    given = {"seed": seed, **given, **chosen}
    if "world_size" not in given:
        raise ConfigurationError("expected on how many ranks the test runs, such as world_size=4")
    given.setdefault("backend", "simulated" if takes_comm or _is_simulated(given) else "threaded")
    return Options(**given)


def _is_simulated(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) is not None for name in ("topology", "sends"))


def variants(declared: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of values on the axes."""
    found = list(axes(declared))
    for values in itertools.product(*(axis.values for axis in found)):
        yield {axis.option: value for axis, value in zip(found, values, strict=True)}


def check_function(function: object) -> None:
    """Raise :class:`~simcoll.errors.ConfigurationError` for a test that ranks cannot run."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            "it is async: ranks have a thread or a process each and may block; make it a plain function"
        )
    if inspect.isgeneratorfunction(function):
        raise ConfigurationError("it yields: make it a plain function")
    if getattr(function, "is_hypothesis_test", False):
        raise ConfigurationError(
            "@given would draw other examples on each rank: call simcoll.testing.run_ranks inside the test instead"
        )
