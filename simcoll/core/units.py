"""Sizes in bytes as people write them: ``1GiB``, ``100MB``, ``4096``; rates and counts as they read them."""

from __future__ import annotations

import re
from decimal import Decimal

from simcoll.errors import SimcollError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)
_LETTERS = "kmgtp"
_UNITS = (
    {"": 1, "b": 1}
    | {f"{letter}b": 1000**power for power, letter in enumerate(_LETTERS, 1)}
    | {f"{letter}ib": 1024**power for power, letter in enumerate(_LETTERS, 1)}
    | {letter: 1024**power for power, letter in enumerate(_LETTERS, 1)}
)
"""As nccl-tests has it, a bare letter is a power of 1024."""


class SizeError(SimcollError, ValueError):
    """A text that is no size; states the given text and the expected form."""


def parse_size(text: str) -> int:
    """Bytes; decimal and binary units, whole bytes only; raises SizeError."""
    found = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(found[2].lower()) if found is not None else None
    if found is None or factor is None or len(text) > 32:
        raise SizeError(f"size {text!r:.40}: expected bytes such as 4096, 100MB or 1GiB")
    size = Decimal(found[1]) * factor
    if size != int(size):
        raise SizeError(f"size {text!r}: expected a whole number of bytes, got {size}")
    return int(size)


def parse_range(text: str, factor: int = 2) -> list[int]:
    """One size, or those from MIN to MAX of ``MIN:MAX``, each ``factor`` times the last; raises SizeError."""
    low, colon, high = text.partition(":")
    first = parse_size(low)
    if not colon:
        return [first]
    last = parse_size(high)
    if not 0 < first <= last:
        raise SizeError(f"sizes {text!r}: expected MIN:MAX with MIN above 0 and not above MAX")
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= factor
    return sizes


def show_size(size: int) -> str:
    """Bytes in the largest binary unit that divides them."""
    for power, letter in reversed(list(enumerate(_LETTERS, 1))):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {letter.upper()}iB"
    return f"{size:,} B"


def show_rate(bytes_per_second: float) -> str:
    """``312.40 GB/s``: 10^9 bytes a second, as nccl-tests counts them."""
    return f"{bytes_per_second / 1e9:,.2f} GB/s"


def show_seconds(seconds: float) -> str:
    """``1.25 s`` or ``380.1 ms``."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.1f} ms"


def counted(count: int, noun: str) -> str:
    """``1 rank``, ``4,096 ranks``, ``2 switches``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ch") else "s")
