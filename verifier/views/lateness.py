"""How long after the first rank of its group each rank came to each call, in one byte a call.

The times are those of the ranks' own clocks, and no better than these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simcoll.core.trace import Trace
from simcoll.verifier.views.timeline_codes import Codes, Coding, line_of

MOST_TIMES = 3_000_000
"""Calls for which it is worked out."""

STEPS = 8
"""A byte of ``1 + STEPS * log2(microseconds)``, rounded: steps of 9 %, up to more than half an hour; 0 is no time."""

NO_LATENESS: npt.NDArray[np.uint8] = np.zeros((0, 0), np.uint8)

LATENESS_LEFT_OUT = "how late each rank came is left out: there are too many calls for one page"
"""What a report says where it is not worked out."""

_NEVER = np.iinfo(np.uint64).max


def lateness(
    coding: Coding, traces: Sequence[Trace], coded: Sequence[Codes], codes: Codes
) -> tuple[npt.NDArray[np.uint8], str]:
    """A byte for each rank and column, or nothing and why."""
    if len(traces) * len(codes) > MOST_TIMES:
        return NO_LATENESS, LATENESS_LEFT_OUT
    times = _times(traces, coded, codes)
    lines = line_of(codes)
    found = np.zeros(times.shape, np.uint8)
    for line, rows in _members(coding, traces):
        columns = np.flatnonzero(lines == line)
        if len(columns):
            at = np.ix_(np.array(rows), columns)
            found[at] = _bytes(times[at])
    return found, ""


def _times(traces: Sequence[Trace], coded: Sequence[Codes], codes: Codes) -> npt.NDArray[np.uint64]:
    """When each rank came to each column; the greatest number where it did not, or where no time is known."""
    order = np.argsort(codes, kind="stable")
    times = np.full((len(traces), len(codes)), _NEVER, np.uint64)
    for place, (trace, own) in enumerate(zip(traces, coded, strict=True)):
        made = trace.slots["scheduled_ns"]
        rows = np.flatnonzero((own >= 0) & (made > 0))
        times[place, order[np.searchsorted(codes[order], own[rows])]] = made[rows]
    return times


def _members(coding: Coding, traces: Sequence[Trace]) -> list[tuple[int, list[int]]]:
    """The line and the rows of the recorded members of each group."""
    found: dict[tuple[str, tuple[int, ...]], tuple[int, list[int]]] = {}
    for place, trace in enumerate(traces):
        for group in set(trace.groups):
            if trace.rank in group.ranks and (line := coding.line(group)) >= 0:
                found.setdefault((group.name, group.ranks), (line, []))[1].append(place)
    return list(found.values())


def _bytes(times: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    first = times.min(axis=0)
    known = times != _NEVER
    microseconds = np.where(known, times - first, 0).astype(np.float64) / 1000
    steps = np.rint(1 + STEPS * np.log2(np.maximum(microseconds, 1.0)))
    shown: npt.NDArray[np.uint8] = np.where(known, np.minimum(steps, 255), 0).astype(np.uint8)
    return shown
