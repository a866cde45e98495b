"""The work that a rank does between its calls, and how long a GPU takes over it: the roofline.

An operator takes as long as its FLOPs at the share of the peak that is reached, or as its bytes at the memory's
bandwidth, whichever is longer (Williams, Waterman, Patterson: Roofline, CACM 52 (2009) 4). Operators of one dtype
and about the same FLOPs a byte are added up first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes by dtype and intensity."""

    rows: tuple[tuple[str, int, int, int], ...]

    def plus(self, other: Work) -> Work:
        """Both, one after the other."""
        return Work(self.rows + other.rows) if self.rows else other

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return sum(row[2] for row in self.rows)


NOTHING = Work(())

_MOST = 1 << 96
"""FLOPs and bytes that a row may state: more is nonsense, and may not fit a float."""


def parse_work(rows: Iterable[Any]) -> Work:
    """Work as an event states it; what is none is passed over."""
    return Work(tuple(tuple(row) for row in rows if _is_row(row)))


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[0], str)
        and all(type(number) is int for number in row[1:])
        and min(row[2:]) >= 0
        and max(row[2:]) < _MOST
    )


@dataclass(frozen=True, slots=True)
class WorkBetween:
    """The work before each operation of a program: which of ``distinct`` it is."""

    which: npt.NDArray[np.int32]
    distinct: tuple[Work, ...]

    @classmethod
    def of(cls, work: Iterable[Work]) -> WorkBetween:
        """From the work before each operation."""
        numbers: dict[Work, int] = {}
        which = [numbers.setdefault(one, len(numbers)) for one in work]
        return cls(np.array(which, np.int32), tuple(numbers))

    def flops(self, chosen: npt.NDArray[np.bool_]) -> int:
        """FLOPs before the operations that are chosen."""
        counts = np.bincount(self.which[chosen], minlength=len(self.distinct)).tolist()
        return sum(count * work.flops for count, work in zip(counts, self.distinct, strict=True))


@dataclass(frozen=True, slots=True)
class Rates:
    """What a GPU does: FLOPs/s by dtype that a program reaches, bytes/s of its memory."""

    flops: Mapping[str, float]
    memory: float

    def seconds(self, work: Work) -> float:
        """How long it takes over some work; a dtype that is not known runs as the slowest one."""
        slowest = min(self.flops.values())
        return sum(
            max(flops / self.flops.get(dtype, slowest) if flops else 0.0, size / self.memory)
            for dtype, _, flops, size in work.rows
        )

    def gaps(self, between: WorkBetween) -> npt.NDArray[np.float64]:
        """Seconds before each operation."""
        each = np.array([self.seconds(work) for work in between.distinct])
        found: npt.NDArray[np.float64] = each[between.which]
        return found
