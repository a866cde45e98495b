"""The times of a replay: of each collective and each rank, and how long ranks were held up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.pricing.job import Floats, Integers
from simcoll.pricing.lockstep import Lockstep
from simcoll.pricing.rank_program import LAUNCH, WAIT, Program

_NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """The times of a replay, in seconds from its begin.

    Of each collective: its begin and end, when its first and its last rank came, the column of the last, and seconds
    that ranks were held up by it while it ran (``exposed``) and before (``waited``), all ranks together. Of each rank:
    the same two, seconds of compute, its end, when it ``arrived`` at each of its operations, and which of them
    (``let_go``) were not waited for because no rank could have gone on. ``cut_short`` counts collectives that did not
    wait for all ranks that come.
    """

    begin: Floats
    end: Floats
    first: Floats
    last: Floats
    latecomer: npt.NDArray[np.int32]
    exposed: Floats
    waited: Floats
    rank_exposed: Floats
    rank_waited: Floats
    rank_compute: Floats
    rank_end: Floats
    arrived: tuple[Floats, ...]
    let_go: tuple[Integers, ...]
    cut_short: int

    @property
    def seconds(self) -> float:
        """Until the last rank has ended."""
        return float(self.rank_end.max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """What a replay finds of ranks in lockstep: when each course came (as `Lockstep.gaps`), its end, what is let go."""

    arrived: Floats
    ended: Floats
    let_go: Integers


def replayed(
    begin: Floats, end: Floats, last: Floats, of: Sequence[tuple[Lockstep, Times]], cut_short: int
) -> Replayed:
    """Sums up the waits by collective and by rank, from when the ranks came and when each collective ended."""
    first, late = np.full(len(begin), np.inf), np.full(len(begin), _NOBODY, np.int32)
    for together, times in of:
        _first_and_last(together, times, last, first, late)
    waited, exposed = np.zeros(len(begin)), np.zeros(len(begin))
    mark = np.zeros(len(begin), np.int64)
    found = [(together, times, _Waits(together, times, last, end, mark)) for together, times in of]
    ranks = sorted(
        (
            (column, int(course), part)
            for part in found
            for column, course in zip(part[0].columns, part[0].course, strict=True)
        ),
        key=lambda each: each[0],
    )
    of_rank = np.zeros((3, len(ranks)))
    for column, course, (together, _, waits) in ranks:
        of_rank[:2, column] = waits.add(course, waited, exposed)
        of_rank[2, column] = together.programs[course].gap.sum()
    return Replayed(
        begin,
        end,
        np.where(np.isfinite(first), first, begin),
        last,
        late,
        exposed,
        waited,
        of_rank[1],
        of_rank[0],
        of_rank[2],
        np.array([times.ended[course] for _, course, (_, times, _) in ranks], np.float64),
        tuple(times.arrived[:, course] for _, course, (_, times, _) in ranks),
        tuple(times.let_go for _, _, (_, times, _) in ranks),
        cut_short,
    )


def _first_and_last(together: Lockstep, times: Times, last: Floats, first: Floats, late: npt.NDArray[np.int32]) -> None:
    """Writes down when the first of these ranks came to each collective, and which of those that came last."""
    calls = together.kind != WAIT
    every = bool(calls.all())
    mine, arrived = (together.instance, times.arrived) if every else (together.instance[calls], times.arrived[calls])
    if len(together.columns) == 1:
        first[mine] = np.minimum(first[mine], arrived[:, 0])
        there = mine[arrived[:, 0] >= last[mine]]
        late[there] = np.maximum(late[there], together.columns[0])
        return
    first[mine] = np.minimum(first[mine], arrived.min(axis=1))
    columns = np.zeros(arrived.shape[1], np.int32)
    columns[together.course] = together.columns
    order = np.argsort(columns)[::-1]
    came = (arrived >= last[mine, None])[:, order]
    there = came.any(axis=1)
    np.maximum.at(late, mine[there], columns[order][came[there].argmax(axis=1)])


class _Waits:
    """Seconds that ranks in lockstep wait; ``mark`` has a place for each collective, and is scribbled on."""

    def __init__(self, together: Lockstep, times: Times, last: Floats, end: Floats, mark: Integers) -> None:
        self._arrived, self._size = times.arrived, len(together.kind)
        self._places: Integers | slice = slice(None)
        # Where every operation waits, nothing is copied.
        if len(times.let_go) or (together.kind == LAUNCH).any():
            waiting = np.flatnonzero(together.kind != LAUNCH)
            self._places = np.setdiff1d(waiting, times.let_go, assume_unique=True)
        self._mine = together.instance[self._places]
        self._last, self._end = last[self._mine], end[self._mine]
        mark[self._mine] = order = np.arange(len(self._mine))
        self._once = bool((mark[self._mine] == order).all())
        # Kept for the ranks that compute alike.
        self._often = np.bincount(together.course) > 1
        self._known: dict[int, tuple[Floats, Floats, float, float]] = {}

    def add(self, course: int, waited: Floats, exposed: Floats) -> tuple[float, float]:
        """Adds what one rank waits to the sums of the collectives; its own sums."""
        found = self._known.get(course) or self._of(course)
        if self._often[course]:
            self._known[course] = found
        for sums, one, own in ((waited, found[0], found[2]), (exposed, found[1], found[3])):
            if own and self._once:
                sums[self._mine] += one
            elif own:
                np.add.at(sums, self._mine, one)
        return found[2:]

    def _of(self, course: int) -> tuple[Floats, Floats, float, float]:
        arrived = self._arrived[self._places, course]
        waited, exposed = _held(arrived, self._last, self._end)
        return waited, exposed, self._sum(waited), self._sum(exposed)

    def _sum(self, seconds: Floats) -> float:
        """As of all operations."""
        if len(seconds) == self._size:
            return float(seconds.sum())
        every = np.zeros(self._size)
        every[self._places] = seconds
        return float(every.sum())


def held_up(program: Program, arrived: Floats, last: Floats, end: Floats, let_go: Integers) -> tuple[Floats, Floats]:
    """Seconds that each operation of a rank waits: for the last who comes to the collective, and for its end."""
    waited, exposed = _held(arrived, last[program.instance], end[program.instance])
    for one in (waited, exposed):
        one[program.kind == LAUNCH] = 0.0
        one[let_go] = 0.0
    return waited, exposed


def _held(arrived: Floats, came: Floats, until: Floats) -> tuple[Floats, Floats]:
    waited: Floats = np.maximum(np.minimum(came, until) - arrived, 0.0)
    exposed: Floats = np.maximum(until - np.maximum(arrived, came), 0.0)
    return waited, exposed
