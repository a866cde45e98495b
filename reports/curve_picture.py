"""A curve over sizes as coordinates: a line for each topology, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simcoll.core.units import show_size

_WIDTH, _HEIGHT = 900.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 26.0, 14.0, 34.0
_TICKS = 10


@dataclass(frozen=True, slots=True)
class CurveLine:
    """The points of one line, and what each says."""

    number: int
    name: str
    points: tuple[tuple[float, float], ...]
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CurvePicture:
    """A picture with its grid (``across`` and ``up`` are places and labels), its lines, and its words."""

    title: str
    text: str
    lines: tuple[CurveLine, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    width: float = _WIDTH
    height: float = _HEIGHT
    left: float = _LEFT
    right: float = _WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = _HEIGHT - _BOTTOM


def bandwidth_curve(
    sizes: Sequence[int], lines: Sequence[tuple[str, Sequence[float]]], title: str
) -> CurvePicture | None:
    """Bytes/s over bytes, for each name; None where there is no curve: fewer than two sizes, or no bandwidth."""
    values = [value for _, rates in lines for value in rates if value > 0]
    if len(sizes) < 2 or len(values) < len(lines) * len(sizes):
        return None
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    low, high = 10.0 ** decades[0], 10.0 ** max(decades[-1], decades[0] + 1)
    every = math.ceil(len(sizes) / _TICKS)
    return CurvePicture(
        title,
        f"{title}: " + "; ".join(_said(name, sizes, rates) for name, rates in lines),
        tuple(
            CurveLine(
                number,
                name,
                tuple((_across(size, sizes), _up(rate, low, high)) for size, rate in zip(sizes, rates, strict=True)),
                tuple(f"{name}: {show_size(size)}, {_rate(rate)}" for size, rate in zip(sizes, rates, strict=True)),
            )
            for number, (name, rates) in enumerate(lines)
        ),
        tuple((_across(size, sizes), show_size(size)) for size in sizes[::every]),
        tuple((_up(tick, low, high), _rate(tick)) for tick in (10.0**decade for decade in decades) if tick <= high),
    )


def _across(size: int, sizes: Sequence[int]) -> float:
    share = math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _up(rate: float, low: float, high: float) -> float:
    share = math.log(rate / low) / math.log(high / low)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _said(name: str, sizes: Sequence[int], rates: Sequence[float]) -> str:
    return f"{name} from {_rate(rates[0])} at {show_size(sizes[0])} to {_rate(rates[-1])} at {show_size(sizes[-1])}"


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.4g} GB/s"
