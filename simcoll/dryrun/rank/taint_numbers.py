"""Numbers that depend on values which a dry run can only guess: they stay tainted through arithmetic.

A comparison of one decides which branch the program takes; listeners are called with its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "pow", "truediv", "and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "bool")

_converted_values: set[int] = set()
_listeners: list[Callable[[object], object]] = []


def on_comparison(listener: Callable[[object], object]) -> None:
    """Call ``listener`` with the outcome of each comparison or truth test of a tainted number."""
    _listeners[:] = [listener]


def taint_converted(value: int) -> int:
    """The value, which ``int()`` has made a plain one: from now on sizes that equal it count as tainted."""
    if value != 1:
        _converted_values.add(value)
    return value


class TaintedInt(int):
    """An integer that depends on guessed values."""

    def __reduce__(self) -> Any:
        return int, (int.__int__(self),)

    def __int__(self) -> int:
        return taint_converted(int.__int__(self))

    __hash__ = int.__hash__


class TaintedFloat(float):
    """A float that depends on guessed values."""

    def __reduce__(self) -> Any:
        return float, (float.__float__(self),)

    def __int__(self) -> int:
        return taint_converted(float.__int__(self))

    __hash__ = float.__hash__


def tainted(value: Any) -> Any:
    """The value with its numbers tainted, also in nested lists."""
    if isinstance(value, list):
        return [tainted(one) for one in value]
    if type(value) is int:
        return TaintedInt(value)
    return TaintedFloat(value) if type(value) is float else value


def tainted_numbers(values: Iterable[object]) -> frozenset[int]:
    """The tainted integers among arguments, and in lists among them."""
    found: set[int] = set()
    for value in values:
        if type(value) is TaintedInt:
            found.add(int.__int__(value))
        elif type(value) is int:
            if value in _converted_values:
                found.add(value)
        elif type(value) in (list, tuple):
            found |= tainted_numbers(value)  # type: ignore[arg-type]  # one of the two
    return frozenset(found)


def _computing(kind: type, name: str) -> Callable[..., Any]:
    method = getattr(kind, name)

    def compute(self: Any, *others: SupportsIndex) -> Any:
        return tainted(method(self, *others))

    return compute


def _comparing(kind: type, name: str) -> Callable[..., Any]:
    method = getattr(kind, name)

    def compare(self: Any, *others: object) -> Any:
        outcome = method(self, *others)
        for listener in _listeners:
            listener(outcome)
        return outcome

    return compare


for _kind, _base in ((TaintedInt, int), (TaintedFloat, float)):
    for _name in (*_ARITHMETIC, *(f"r{_name}" for _name in _ARITHMETIC), *_UNARY):
        if hasattr(_base, f"__{_name}__"):
            setattr(_kind, f"__{_name}__", _computing(_base, f"__{_name}__"))
    for _name in _COMPARISONS:
        setattr(_kind, f"__{_name}__", _comparing(_base, f"__{_name}__"))
