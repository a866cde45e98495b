"""The hash of words, and folds the digests of many items to a few bytes for the black box, from which the first that
differs can be named.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ADDED, FACTOR = 0x5851F42D4C957F2D, 0x14057B7EF767814F
"""The constants of the hash of a word: it is multiplied, and its upper half is added to its lower one bit by bit."""

SMALL = 1 << 15
"""Bytes up to which data is hashed word by word; larger ones are laid out in rows, whose sums are hashed."""

ROW = 255
"""Words of eight bytes in such a row. An odd number: a bit that flips in all words of a row shows in its sum, and rows
of a matrix that are exchanged do not fall on rows of words.
"""

STEPPED = "stepped parameters"
"""The kind of a second look at parameters: after the step that follows the first."""

_MOST_PARTS = 256
"""Numbers that stand for the items: of more items, consecutive ones share a number."""


def folded(digests: npt.NDArray[np.int64]) -> tuple[int, str]:
    """One number of 64 bits that stands for a row of digests, and 16 bits of each, or of up to 256 parts of consecutive
    ones, as hexadecimal digits.
    """
    numbers = digests.view(np.uint64)
    begins = np.array(part_begins(len(numbers)), np.int64)
    parts = np.add.reduceat(numbers * _odd(len(numbers)), begins) if len(numbers) else numbers
    mixed = (parts + np.uint64(ADDED)) * np.uint64(FACTOR)
    mixed ^= mixed >> np.uint64(32)
    short: npt.NDArray[Any] = (mixed >> np.uint64(16)).astype(">u2")
    return int((mixed * _odd(len(mixed))).sum(dtype=np.uint64)), short.tobytes().hex()


def part_begins(count: int) -> list[int]:
    """The places of the first items of the parts of so many items."""
    parts = min(count, _MOST_PARTS)
    return [place * count // parts for place in range(parts)]


def _odd(count: int) -> npt.NDArray[np.uint64]:
    return np.arange(1, 2 * count, 2, dtype=np.uint64)
