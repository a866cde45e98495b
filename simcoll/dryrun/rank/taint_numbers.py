"""Numbers that rest on values which a dry run can only guess: they stay marked through arithmetic.

A comparison of one decides which way the program goes; it is told to whoever listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "pow", "truediv", "and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "bool")

_converted: set[int] = set()
_listeners: list[Callable[[object], object]] = []


def on_comparison(listener: Callable[[object], object]) -> None:
    """Have ``listener`` told what comes out where a marked number is compared or asked for its truth."""
    _listeners[:] = [listener]


def converted(value: int) -> int:
    """The value, which ``int()`` has stripped of its mark: sizes that equal it rest on unknown values from now on."""
    if value != 1:
        _converted.add(value)
    return value


class ReceivedInt(int):
    """A whole number that rests on unknown values."""

    def __reduce__(self) -> Any:
        return int, (int.__int__(self),)

    def __int__(self) -> int:
        return converted(int.__int__(self))

    __hash__ = int.__hash__


class ReceivedFloat(float):
    """A number that rests on unknown values."""

    def __reduce__(self) -> Any:
        return float, (float.__float__(self),)

    def __int__(self) -> int:
        return converted(float.__int__(self))

    __hash__ = float.__hash__


def received(value: Any) -> Any:
    """The value with its numbers marked; lists in lists as well."""
    if isinstance(value, list):
        return [received(one) for one in value]
    if type(value) is int:
        return ReceivedInt(value)
    return ReceivedFloat(value) if type(value) is float else value


def received_numbers(values: Iterable[object]) -> frozenset[int]:
    """The marked whole numbers among arguments, and in lists among them."""
    found: set[int] = set()
    for value in values:
        if type(value) is ReceivedInt:
            found.add(int.__int__(value))
        elif type(value) is int:
            if value in _converted:
                found.add(value)
        elif type(value) in (list, tuple):
            found |= received_numbers(value)  # type: ignore[arg-type]  # one of the two
    return frozenset(found)


def _computing(kind: type, name: str) -> Callable[..., Any]:
    method = getattr(kind, name)

    def compute(self: Any, *others: SupportsIndex) -> Any:
        return received(method(self, *others))

    return compute


def _comparing(kind: type, name: str) -> Callable[..., Any]:
    method = getattr(kind, name)

    def compare(self: Any, *others: object) -> Any:
        outcome = method(self, *others)
        for listener in _listeners:
            listener(outcome)
        return outcome

    return compare


for _kind, _base in ((ReceivedInt, int), (ReceivedFloat, float)):
    for _name in (*_ARITHMETIC, *(f"r{_name}" for _name in _ARITHMETIC), *_UNARY):
        if hasattr(_base, f"__{_name}__"):
            setattr(_kind, f"__{_name}__", _computing(_base, f"__{_name}__"))
    for _name in _COMPARISONS:
        setattr(_kind, f"__{_name}__", _comparing(_base, f"__{_name}__"))
