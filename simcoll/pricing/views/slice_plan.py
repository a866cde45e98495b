"""The ranks that a timeline shows where not all fit, and the earliest and the latest part of each collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.core.ranges import ranks_text
from simcoll.reports.trace_event import LIMIT


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The columns that are shown, how many operations of each at most, and what is left out, in words."""

    columns: tuple[int, ...]
    operations: int
    note: str


def plan_slices(
    ranks: Sequence[int],
    lengths: Sequence[int],
    each: int,
    slowest: int,
    limit: int = LIMIT,
    wanted: Sequence[int] = (),
) -> SlicePlan:
    """As many ranks as fit into so many slices, ``each`` of an operation: first, last, slowest, and some between.

    Of those that are ``wanted``, by column, half as many as fit come before the ones between. Where not even one rank
    fits, its first operations.
    """
    longest = max([*lengths, 1])
    most = max(limit // (each * longest), 1)
    operations = min(longest, max(limit // each, 1))
    if most >= len(ranks) and operations >= longest:
        return SlicePlan(tuple(range(len(ranks))), operations, "")
    spread = np.unique(np.linspace(0, len(ranks) - 1, max(most, 1)).astype(np.int64)).tolist()
    first = dict.fromkeys([slowest, *wanted[: most // 2]])
    columns = tuple(sorted(list(dict.fromkeys([*first, *spread]))[:most]))
    note = f"the timeline shows {ranks_text([ranks[column] for column in columns])} of {len(ranks):,} ranks"
    if operations < longest:
        note += f", and their first {operations:,} calls"
    return SlicePlan(columns, operations, f"{note}: {limit:,} slices at most")


@dataclass(frozen=True, slots=True, eq=False)
class FlowEnds:
    """For each collective, the column in which it begins first and the one in which it begins last."""

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]

    def phase(self, number: int, column: int) -> str:
        """Returns the flow phase of a column's part: s, t or f; empty where there is only one part."""
        if self.first[number] == self.last[number]:
            return ""
        return "s" if self.first[number] == column else "f" if self.last[number] == column else "t"


def flow_ends(
    count: int, parts: Sequence[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float64] | npt.NDArray[np.int64]]]
) -> FlowEnds:
    """From the parts that are shown: a column, its collectives by number, and when each began there."""
    first, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    earliest, latest = np.full(count, np.inf), np.full(count, -np.inf)
    for column, numbers, begins in parts:
        before, after = begins < earliest[numbers], begins >= latest[numbers]
        first[numbers[before]], last[numbers[after]] = column, column
        earliest[numbers[before]], latest[numbers[after]] = begins[before], begins[after]
    return FlowEnds(first, last)
