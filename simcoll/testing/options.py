"""The options of a test on several ranks, checked before anything runs. Importing this imports no numpy."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from simcoll.backends.engine.schedules import schedule_of
from simcoll.errors import ConfigurationError
from simcoll.values.choice import VALUES

if TYPE_CHECKING:
    import networkx as nx

BACKENDS = ("simulated", "threaded", "gloo")
"""numpy arrays on threads; torch tensors on threads; torch tensors in real processes on real Gloo."""

FAIL_ON = ("error", "warning")
"""The lowest severity of a finding that fails a test."""

_ONLY_ON = {
    "schedule": ("simulated", "threaded"),
    "explore": ("simulated", "threaded"),
    "topology": ("simulated",),
    "sends": ("simulated",),
}
"""Options that only some backends have."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a program's run on ranks; the fields are the arguments of :func:`simcoll.testing.run_ranks`.

    Raises :class:`~simcoll.errors.ConfigurationError` for invalid values.
    """

    world_size: int
    backend: str | None = None
    seed: int = 0
    schedule: str | None = None
    explore: int | None = None
    timeout: float = 60.0
    topology: nx.DiGraph[Any] | None = None
    sends: str | None = None
    fail_on: str = "warning"
    values: str | None = None

    def __post_init__(self) -> None:
        _whole("world_size", self.world_size, least=1)
        _whole("seed", self.seed)
        if self.explore is not None:
            _whole("explore", self.explore, least=1)
        if self.backend is not None:
            _one_of("backend", self.backend, BACKENDS)
        _one_of("fail_on", self.fail_on, FAIL_ON)
        if self.values is not None:
            _one_of("values", self.values, VALUES)
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or not self.timeout > 0:
            raise ConfigurationError(f"timeout={self.timeout!r:.40}: expected seconds, more than 0")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.schedule is not None:
            if not isinstance(self.schedule, str):
                raise ConfigurationError(f"schedule={self.schedule!r:.40}: expected a text such as '12:1,40:2'")
            schedule_of(self.schedule)
            if self.explore is not None:
                raise ConfigurationError(
                    "explore and schedule are both given: explore tries many, schedule replays one"
                )
        for name, backends in _ONLY_ON.items():
            if getattr(self, name) is not None and self.backend not in (None, *backends):
                where = " and ".join(map(repr, backends))
                raise ConfigurationError(f"{name} is for the backend {where}, and this is {self.backend!r}")


NAMES = tuple(field.name for field in fields(Options))


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise :class:`~simcoll.errors.ConfigurationError` for the first name that is not known."""
    known = sorted(known)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"unknown option {name!r:.40}: expected one of {', '.join(known)}{meant}")


def _whole(name: str, value: object, *, least: int | None = None) -> None:
    expected = "a whole number" if least is None else f"a whole number, at least {least}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # other types raise TypeError
    except TypeError:
        raise ConfigurationError(f"{name}={value!r:.40}: expected {expected}") from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise ConfigurationError(f"{name}={value!r:.40}: expected {expected}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name}={value!r:.40}: expected one of {', '.join(map(repr, known))}")
