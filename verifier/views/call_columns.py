"""The columns of pictures of ranks by calls: every call of every rank has one, in order of time.

:class:`Coding` numbers the place of a call in the life of its group: calls of one column have one number. Groups of one
kind that have no rank in common (a tensor-parallel group for each node, say) share columns, so that ranks that do the
same in different groups have equal rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, State
from simcoll.core.trace import Trace
from simcoll.verifier.findings.finding import CallPlace, Finding, Mark, Side
from simcoll.verifier.views.selection import Selection
from simcoll.verifier.views.summary import kind_of

Codes: TypeAlias = npt.NDArray[np.int64]
"""Line (20 bits), life of the group (10), whether it is a message (1), number (32); -1 where a call has no column."""

_LINES, _LIVES = 1 << 20, 1 << 10


class Coding:
    """The lines of columns: one for groups of one kind without common ranks."""

    def __init__(self, traces: Sequence[Trace], selection: Selection) -> None:
        self._lines: dict[tuple[str, tuple[int, ...]], int] = {}
        self._groups: list[list[Group]] = []
        self._kinds: dict[tuple[str, int], list[tuple[int, set[int]]]] = {}
        # Where a ring has wrapped, lives are counted from the last.
        self._wrapped = any(trace.dropped or trace.dropped_p2p for trace in traces)
        for trace in traces:
            for group in trace.groups:
                if trace.rank in group.ranks and selection.has_group(group):
                    self._take(group)

    def line(self, group: Group) -> int:
        """The line of a group; -1 for one that is not shown."""
        return self._lines.get((group.name, group.ranks), -1)

    def codes(self, trace: Trace) -> Codes:
        """The code of each row of a trace."""
        slots = trace.slots
        mine = (self.line(group) if trace.rank in group.ranks else -1 for group in trace.groups)
        table = np.array([*mine, -1], np.int64)
        lines = table[np.minimum(slots["group"], len(trace.groups))]
        message = slots["p2p_sequence"] > 0
        numbers = np.where(message, slots["p2p_sequence"], slots["sequence"]).astype(np.int64)
        codes = np.full(len(slots), -1, np.int64)
        for kind in np.unique((lines * 2 + message)[lines >= 0]):
            rows = np.flatnonzero(lines * 2 + message == kind)
            lives = self._life(numbers[rows])
            codes[rows] = (((kind >> 1) * _LIVES + lives) * 2 + (kind & 1)) << 32 | numbers[rows]
        return codes

    def lines_of_member(self, trace: Trace) -> list[int]:
        """The lines in which a rank that made no call is absent: it is a member, and nothing was overwritten."""
        lost = set(trace.dropped) | set(trace.dropped_p2p)
        mine = [group for index, group in enumerate(trace.groups) if trace.rank in group.ranks and index not in lost]
        return [line for group in mine if (line := self.line(group)) >= 0]

    def of_findings(self, findings: Sequence[Finding]) -> Codes:
        """The codes of all findings, as :func:`lifeless` gives them."""
        return np.array([code for one in findings for code, _ in self.named(one)], np.int64)

    def named(self, finding: Finding) -> list[tuple[int, frozenset[int]]]:
        """The codes of a finding, as :func:`lifeless` gives them, and the ranks that it names at each.

        These are its culprits; where no majority names one, all ranks that are not of the first side, or, in a
        finding without one call, the ranks at the call of a side.
        """
        culprits = frozenset(finding.culprits)
        if finding.group is not None and finding.sequence is not None:
            others = frozenset(rank for side in finding.sides[1:] for rank in side.ranks)
            found = [(CallPlace(finding.group, finding.sequence), culprits or others)]
        else:
            at = [(side.place, _at(side, side.place)) for side in finding.sides if side.place is not None]
            found = [(place, ranks & culprits if culprits else ranks) for place, ranks in at]
        return [(self._code(place), ranks) for place, ranks in found if self.line(place.group) >= 0]

    def _code(self, place: CallPlace) -> int:
        return self.line(place.group) << 43 | (place.rank is not None) << 32 | place.number

    def group_of(self, code: int) -> tuple[Group, int]:
        """A group of a code's line, and the number of groups there."""
        groups = self._groups[code >> 43]
        return groups[0], len(groups)

    def _life(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The life of the group to which each call belongs: a group made anew counts from 1 again."""
        lives: npt.NDArray[np.int64] = np.maximum(np.cumsum(numbers == 1, dtype=np.int64), 1)
        last = lives[-1] - _LIVES + 1 if self._wrapped else np.int64(0)
        return np.clip(lives - last, 0, _LIVES - 1)

    def _take(self, group: Group) -> None:
        key = group.name, group.ranks
        if key in self._lines or len(self._groups) >= _LINES:
            return
        lines = self._kinds.setdefault(kind_of(group), [])
        found = next(((line, taken) for line, taken in lines if taken.isdisjoint(group.ranks)), None)
        if found is None:
            found = len(self._groups), set()
            lines.append(found)
            self._groups.append([])
        self._lines[key] = found[0]
        found[1].update(group.ranks)
        self._groups[found[0]].append(group)


def _at(side: Side, place: CallPlace) -> frozenset[int]:
    """The ranks of a side that are at its place: a message has its number on one rank."""
    return frozenset(side.ranks if place.rank is None else (place.rank,))


def number_of(code: int) -> tuple[int, bool]:
    """A code's number in its group, and True if it is that of a message."""
    return code & 0xFFFFFFFF, bool(code >> 32 & 1)


def line_of(codes: Codes) -> Codes:
    """The line of each code."""
    return codes >> 43


def lifeless(codes: Codes) -> Codes:
    """Codes that are equal in every life of a group: a finding does not state its life."""
    return codes & ~np.int64((_LIVES - 1) << 33)


MARKS: dict[int, Mark] = {
    State.SCHEDULED: Mark.OPEN,
    State.STARTED: Mark.OPEN,
    State.COMPLETED: Mark.DONE,
    State.FAILED: Mark.FAILED,
    State.REJECTED: Mark.FAILED,
}
"""The mark of a call in each state."""

_MERGED = 64
_LATEST = np.iinfo(np.uint64).max


@dataclass(frozen=True, slots=True, eq=False)
class CallColumns:
    """All columns of some ranks: their codes in order of time, and when the first rank made each call (wall clock, ns).

    ``coded`` has the codes of the calls of each trace.
    """

    coding: Coding
    traces: Sequence[Trace]
    coded: Sequence[Codes]
    codes: Codes
    times: npt.NDArray[np.uint64]


def call_columns(traces: Sequence[Trace], coding: Coding) -> CallColumns:
    """The columns of these traces."""
    coded = [coding.codes(trace) for trace in traces]
    merged = _Merged()
    for start in range(0, len(traces), _MERGED):
        merged.merge(traces[start : start + _MERGED], coded[start : start + _MERGED])
    return CallColumns(coding, traces, coded, *merged.in_time())


@dataclass(slots=True)
class _Merged:
    """The columns of the traces so far: their codes, ascending, and the time at which the first rank made each call."""

    codes: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    times: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    def merge(self, traces: Sequence[Trace], coded: Sequence[Codes]) -> None:
        """Take in the calls of more traces."""
        rows = [np.flatnonzero(codes >= 0) for codes in coded]
        codes = [codes[row] for codes, row in zip(coded, rows, strict=True)]
        times = [trace.slots["scheduled_ns"][row] for trace, row in zip(traces, rows, strict=True)]
        self.codes, place = np.unique(np.concatenate([self.codes, *codes]), return_inverse=True)
        earlier, self.times = self.times, np.full(len(self.codes), _LATEST, np.uint64)
        np.minimum.at(self.times, place, np.concatenate([earlier, *times]))

    def in_time(self) -> tuple[Codes, npt.NDArray[np.uint64]]:
        """The columns in order of time; those of one group stay in their own order, whatever the hosts' clocks say."""
        line = self.codes >> 32
        starts = np.flatnonzero(np.diff(line, prepend=-1))
        parts = [np.maximum.accumulate(part) for part in np.split(self.times, starts[1:])] if len(starts) else []
        times = np.concatenate(parts) if parts else self.times
        order = np.argsort(times, kind="stable")
        return self.codes[order], self.times[order]
