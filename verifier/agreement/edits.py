"""Edits between a sequence of calls and the reference: skipped, extra, reordered, replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcoll.verifier.agreement.alignment import LINE, OUTLINE, STATEMENT, UNKNOWN, Ints, Path

_APART = 16
"""Calls between two exchanged ones beyond which they are two differences."""

_NEAR = 3
"""Calls that agree between two differences below which an unclear one takes in the other."""


class EditKind(Enum):
    """The ways in which an edit departs from the reference."""

    SKIPPED = "skipped"
    EXTRA = "extra"
    SWAPPED = "swapped"


@dataclass(frozen=True, slots=True)
class Edit:
    """A departure from the reference's calls ``low`` to ``high``; an extra call stands before ``low`` (and ``high``).

    ``tokens`` are the departing rank's own calls (none where it skipped), ``slack`` how many places the edit could also
    stand further on, because the calls there look alike. Edits are equal where they do the same.
    """

    kind: EditKind
    low: int
    high: int
    tokens: tuple[int, ...]
    slack: int = field(default=0, compare=False)
    mine: int = field(default=0, compare=False)
    """Where the departing rank's own sequence stands there."""


@dataclass(slots=True, eq=False)
class Departures:
    """All edits of a course, and its calls' partners in the reference: -1 where it has none to be compared with."""

    edits: list[Edit]
    partner: Ints
    reached: int


class _Block(NamedTuple):
    """A stretch without common calls: reference calls ``low`` to ``high``, others ``first`` to ``last``."""

    low: int
    high: int
    first: int
    last: int
    swapped: bool = False

    @property
    def skips(self) -> int:
        return self.high - self.low

    @property
    def adds(self) -> int:
        return self.last - self.first

    @property
    def even(self) -> bool:
        return self.skips == self.adds


def departures(features: Ints, reference: Ints, other: Ints, path: Path, *, swaps: bool = True) -> Departures:
    """Read the edits from an aligned path; without ``swaps`` a call in another place is one skipped and one extra."""
    found = Departures([], path.partner.copy(), path.reached)
    beyond = np.flatnonzero(path.partner >= path.reached)
    end = int(beyond[0]) if len(beyond) else len(other)
    blocks = _blocks(features, reference, other, path, end)
    if swaps:
        blocks = _swaps(features, reference, other, blocks)
        if _reordered_to_the_end(features, reference, other, blocks):
            blocks[-1] = _to_the_end(reference, other, blocks[-1])
            found.reached = len(reference)
    blocks = _unclear_ones_joined(blocks) if any(map(_unclear, blocks)) else blocks
    if blocks and _unrelated(features, reference, other, path, blocks, end):
        first = blocks[0]
        found.partner[first.first :] = -1
        _pair_replaced(features, reference, other, found, first._replace(high=path.reached, last=end), 1)
        found.reached = min(first.low + 1, path.reached)
        return found
    for block in blocks:
        _read(features, reference, other, found, block)
    return found


def _blocks(features: Ints, reference: Ints, other: Ints, path: Path, end: int) -> list[_Block]:
    mine = np.flatnonzero(path.partner[:end] >= 0)
    theirs = path.partner[mine]
    alike = _same(features, reference[theirs], other[mine], OUTLINE)
    mine = np.concatenate([[-1], mine[alike], [end]])
    theirs = np.concatenate([[-1], theirs[alike], [path.reached]])
    breaks = np.flatnonzero((np.diff(mine) > 1) | (np.diff(theirs) > 1))
    ends = (theirs[breaks] + 1, theirs[breaks + 1], mine[breaks] + 1, mine[breaks + 1])
    return [*map(_Block, *(end.tolist() for end in ends))]


def _same(features: Ints, a: Ints, b: Ints, feature: int) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = features[a, feature] == features[b, feature]
    unknown: npt.NDArray[np.bool_] = (a == UNKNOWN) | (b == UNKNOWN)
    return np.logical_or(same, unknown)


def _swaps(features: Ints, reference: Ints, other: Ints, blocks: Sequence[_Block]) -> list[_Block]:
    """Join blocks that together hold the same calls in another order."""
    # The same calls in any order have the same sum, which two looks tell.
    theirs, mine = (_sums(features[tokens, STATEMENT]) for tokens in (reference, other))
    found, k = list[_Block](), 0
    while k < len(blocks):
        low, first = blocks[k].low, blocks[k].first
        for many, end in enumerate(blocks[k : k + 3], 1):
            size = end.high - low
            if not (size == end.last - first and size <= _APART):
                continue
            if theirs[end.high] - theirs[low] != mine[end.last] - mine[first]:
                continue
            joined = _Block(low, end.high, first, end.last, swapped=True)
            if _reordered(features, reference, other, joined):
                found.append(joined)
                k += many
                break
        else:
            found.append(blocks[k])
            k += 1
    return found


def _sums(values: Ints) -> list[int]:
    """The sums of all before each place."""
    return [0, *np.cumsum(values, dtype=np.int64).tolist()]


def _reordered(features: Ints, reference: Ints, other: Ints, block: _Block) -> bool:
    theirs, mine = reference[block.low : block.high], other[block.first : block.last]
    if block.skips < 2 or UNKNOWN in theirs or UNKNOWN in mine:
        return False
    return Counter(features[theirs, STATEMENT].tolist()) == Counter(features[mine, STATEMENT].tolist())


def _reordered_to_the_end(features: Ints, reference: Ints, other: Ints, blocks: Sequence[_Block]) -> bool:
    """True if both sequences end with the same calls in another order: then none is extra, and no rank is behind."""
    if not blocks or blocks[-1].swapped:
        return False
    tail = _to_the_end(reference, other, blocks[-1])
    return tail.even and tail.skips <= _APART and _reordered(features, reference, other, tail)


def _to_the_end(reference: Ints, other: Ints, block: _Block) -> _Block:
    return block._replace(high=len(reference), last=len(other), swapped=True)


def _unclear_ones_joined(blocks: Sequence[_Block]) -> list[_Block]:
    """Merge a block that replaces calls by more or fewer others with the blocks beside it: they are one branch."""
    found: list[_Block] = []
    for block in blocks:
        near = bool(found) and block.low - found[-1].high < _NEAR
        if near and not block.swapped and not found[-1].swapped and (_unclear(block) or _unclear(found[-1])):
            found[-1] = found[-1]._replace(high=block.high, last=block.last)
        else:
            found.append(block)
    return found


def _unclear(block: _Block) -> bool:
    skips, adds = block.high - block.low, block.last - block.first
    return skips != adds and bool(skips and adds)


def _unrelated(features: Ints, reference: Ints, other: Ints, path: Path, blocks: Sequence[_Block], end: int) -> bool:
    """True if less than half of the calls after the first difference belong to the reference."""
    mine = np.arange(blocks[0].first, end)
    paired = mine[path.partner[mine] >= 0]
    alike = int(_same(features, reference[path.partner[paired]], other[paired], OUTLINE).sum())
    alike += sum(block.adds for block in blocks if block.swapped)
    return 2 * alike < len(mine)


def _read(features: Ints, reference: Ints, other: Ints, found: Departures, block: _Block) -> None:
    """Note the edit that a block is; replaced calls are none, they are compared where they stand."""
    if block.swapped:
        _pair_swapped(features, reference, other, found.partner, block)
        tokens = tuple(other[block.first : block.last].tolist())
        found.edits.append(Edit(EditKind.SWAPPED, block.low, block.high, tokens, mine=block.first))
    elif not block.adds:
        found.edits.append(_skipped(reference, other, found, block))
    elif not block.skips:
        found.edits.append(_extra(reference, other, found, block))
    else:
        _pair_replaced(features, reference, other, found, block, min(block.skips, block.adds))


def _skipped(reference: Ints, other: Ints, found: Departures, block: _Block) -> Edit:
    """Move a gap among calls that look alike to the first of them."""
    size, low, first = block.skips, block.low, block.first
    while low and first and reference[low - 1] == reference[low + size - 1] == other[first - 1]:
        if found.partner[first - 1] != low - 1:
            break
        low, first = low - 1, first - 1
        found.partner[first] = low + size
    last, mine = low, first
    while (
        mine < len(other) and last + size < found.reached and reference[last] == reference[last + size] == other[mine]
    ):
        last, mine = last + 1, mine + 1
    return Edit(EditKind.SKIPPED, low, low + size, (), last - low, first)


def _extra(reference: Ints, other: Ints, found: Departures, block: _Block) -> Edit:
    size, low, first = block.adds, block.low, block.first
    while low and first and other[first - 1] == other[first + size - 1] == reference[low - 1]:
        if found.partner[first - 1] != low - 1:
            break
        low, first = low - 1, first - 1
        found.partner[first], found.partner[first + size] = -1, low
    last, theirs = first, low
    while (
        theirs < found.reached and last + size < len(other) and other[last] == other[last + size] == reference[theirs]
    ):
        last, theirs = last + 1, theirs + 1
    return Edit(EditKind.EXTRA, low, low, tuple(other[first : first + size].tolist()), last - first, first)


def _pair_swapped(features: Ints, reference: Ints, other: Ints, partner: Ints, block: _Block) -> None:
    """Give each call of a reordered stretch the same call of the reference for a partner."""
    places: dict[int, list[int]] = {}
    for place in range(block.high - 1, block.low - 1, -1):
        places.setdefault(int(features[reference[place], STATEMENT]), []).append(place)
    for mine in range(block.first, block.last):
        partner[mine] = places[int(features[other[mine], STATEMENT])].pop()


def _pair_replaced(features: Ints, reference: Ints, other: Ints, found: Departures, block: _Block, size: int) -> None:
    """Pair replaced calls in order: the first, and those that come from the reference's own lines.

    Calls of other lines that follow are of the same other branch, and left alone.
    """
    found.partner[block.first : block.last] = -1
    for k in range(size):
        theirs, mine = reference[block.low + k], other[block.first + k]
        known = UNKNOWN not in (theirs, mine)
        if k == 0 or not known or features[theirs, LINE] == features[mine, LINE]:
            found.partner[block.first + k] = block.low + k
