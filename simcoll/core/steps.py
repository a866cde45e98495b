"""The steps of a training loop: marked by the program (``simcoll.step``), or found where its calls repeat.

Marks are thinned out, so that a long job leaves a few hundred of them: the number of steps that have ended is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Event, number
from simcoll.core.trace import Slots
from simcoll.core.waits import begins_burst

Tokens = npt.NDArray[np.int64]

STEP = "step"
"""The kind of the event that marks the end of a step."""

STEPS = "steps"
"""The kind of the event that tells how many steps had ended when the record was read; it has no time."""

_EXACT_BITS = 8
_PACE_MARKS = 8
_MOST = (1 << 62) - 1

LEAST_STEPS = 3
"""A sequence of calls is a step if it comes at least so often, one after the other."""

_COVERED = 0.5
"""So much of all calls must stand in steps."""

_AS_GOOD = 0.9
"""A shorter period is preferred to one that covers a little more."""

_TRIED = 48

_SPARSE = 4
"""So many times as large as there are distances may they be to be counted by a table of them all."""

_KINDS = (1 << 20) - 1
"""So many groups, signatures and lines are told apart."""


def is_marked(ended: int) -> bool:
    """True if the end of step ``ended`` (from 1) is written down: all of the first 255, then 128 per doubling."""
    return ended % (1 << max(0, ended.bit_length() - _EXACT_BITS)) == 0


def mark_place(ended: int) -> int:
    """The place among all marks of that of step ``ended``, which :func:`is_marked`."""
    doublings = max(0, ended.bit_length() - _EXACT_BITS)
    return ended - 1 if not doublings else (1 << _EXACT_BITS - 1) * doublings - 1 + (ended >> doublings)


MARKS: Final = 4_608
"""Places for marks, enough for 2^42 steps."""


def _marked_steps() -> Iterator[int]:
    """The steps that are marked, in order."""
    exact = 1 << _EXACT_BITS
    yield from range(1, exact)
    for doublings in count(1):
        yield from range(exact << doublings - 1, exact << doublings, 1 << doublings)


_NUMBERS = np.fromiter(islice(_marked_steps(), MARKS), np.int64, MARKS)


def ended_event(ended: int, marks: StepMarks | None = None) -> tuple[Event, ...]:
    """The event that tells how many steps had ended when a record was read, and their marks where these are no events
    of their own; none where no step was marked.
    """
    data: dict[str, object] = {"ended": ended} if marks is None else {"ended": ended, "marks": marks}
    return (Event(STEPS, 0, data),) if ended else ()


@dataclass(frozen=True, slots=True)
class StepNumber:
    """The number of a step, from 1; not ``exact`` where it is worked out from thinned marks, or from repeated calls."""

    number: int
    exact: bool

    def __str__(self) -> str:
        return f"{'' if self.exact else 'about '}step {self.number:,}"


@dataclass(frozen=True, slots=True, eq=False)
class StepMarks:
    """The marks of one rank: the ``numbers`` of ended steps, their times (wall clock, ns), and how many ``ended``."""

    numbers: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    ended: int

    @classmethod
    def at_places(cls, times: npt.NDArray[np.uint64], ended: int) -> StepMarks | None:
        """The marks by :func:`mark_place`, as far as there are any; 0 is the time of a step that has not ended."""
        times = times[:MARKS]
        # A damaged mark, or a clock that was set back: the others tell.
        known = (times > 0) & (times <= np.uint64(_MOST))
        latest: npt.NDArray[np.uint64] = np.maximum.accumulate(np.where(known, times, 0))
        rows = np.flatnonzero(known & (times == latest))
        if not len(rows):
            return None
        numbers = _NUMBERS[rows]
        return cls(numbers, times[rows].astype(np.int64), max(ended, int(numbers[-1])))

    @classmethod
    def of(cls, events: Iterable[Event]) -> StepMarks | None:
        """The marks among a rank's events; None where the program marked no steps."""
        marks: list[tuple[int, int]] = []
        ended = 0
        for event in events:
            if event.kind == STEPS:
                ended = min(max(ended, number(event, "ended") or 0), _MOST)
                if isinstance(whole := event.data.get("marks"), StepMarks):
                    return whole
            elif event.kind == STEP:
                before, since = marks[-1] if marks else (0, 0)
                at = number(event, "number") or 0
                # A damaged mark, or a clock that was set back: the others tell.
                if before < at <= _MOST and since <= event.time_ns <= _MOST:
                    marks.append((at, event.time_ns))
        if not marks:
            return None
        numbers, times = np.array(marks, np.int64).T
        return cls(numbers, times, max(ended, int(numbers[-1])))

    def at(self, time_ns: int, *, last: bool = False) -> StepNumber:
        """The step that ran at a time; ``last`` says that the rank was seen no later."""
        place = int(np.searchsorted(self.times, time_ns, side="right"))
        before = int(self.numbers[place - 1]) if place else 0
        if place == len(self.numbers):
            if self.ended == before:
                return StepNumber(self.ended + 1, exact=True)
            if last:
                # The rank may have ended the step since its last call.
                return StepNumber(self.ended + 1, exact=False)
            passed = (time_ns - int(self.times[-1])) / 1e9
            steps = 0 if self.seconds is None else int(passed / self.seconds)
            return StepNumber(min(before + 1 + steps, self.ended + 1), exact=False)
        after = int(self.numbers[place])
        if after == before + 1:
            return StepNumber(after, exact=True)
        begun = int(self.times[place - 1]) if place else time_ns
        share = (time_ns - begun) / max(int(self.times[place]) - begun, 1)
        return StepNumber(before + 1 + int(share * (after - before - 1)), exact=False)

    @property
    def seconds(self) -> float | None:
        """The mean time of the last steps in seconds; None where fewer than two were marked."""
        count = min(_PACE_MARKS, len(self.numbers) - 1)
        if not count:
            return None
        steps = int(self.numbers[-1] - self.numbers[-1 - count])
        return max(float(self.times[-1] - self.times[-1 - count]), 1.0) / 1e9 / steps


@dataclass(frozen=True, slots=True)
class Steps:
    """One rank's steps among its matched calls: the first call of the first step, calls of a step, how many steps."""

    first: int
    period: int
    count: int

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The place of each step's first call."""
        return self.first + self.period * np.arange(self.count)

    @property
    def stop(self) -> int:
        """The place behind the last step."""
        return self.first + self.period * self.count


def call_tokens(slots: Slots, rank: npt.NDArray[np.int64] | None = None) -> Tokens:
    """One number a call: equal for calls of one group, signature and line.

    Of calls that are all alike, as DDP's buckets are, those that the rank makes before it waits for the first of them
    belong together: the first has another number (:func:`simcoll.core.waits.begins_burst`, with its arguments).
    """
    tokens = begins_burst(slots, rank).astype(np.int64) << 62
    for name, bits in (("group", 42), ("signature", 21), ("source", 0)):
        tokens += (slots[name].astype(np.int64) & _KINDS) << bits
    return tokens


def period_of(tokens: Tokens) -> Steps | None:
    """The shortest sequence whose repetition makes up most of all calls; what comes before and after may differ."""
    best: tuple[int, int, int] | None = None
    least = _COVERED * len(tokens)
    for period in sorted(_candidates(tokens)):
        same = tokens[period:] == tokens[:-period]
        # No stretch is longer than all that is alike.
        most = int(np.count_nonzero(same)) + period
        if most < least or most // period < LEAST_STEPS or (best is not None and best[2] >= _AS_GOOD * most):
            continue
        first, covered = _longest(same, period)
        if covered // period < LEAST_STEPS or covered < least:
            continue
        if best is None or best[2] < _AS_GOOD * covered:
            best = period, first, covered
    return None if best is None else Steps(best[1], best[0], best[2] // best[0])


def _candidates(tokens: Tokens) -> set[int]:
    """Distances between calls that are alike: of each kind of call, the two that occur most often, and sums of those.

    The rarest kinds that come often enough tell most: a call that a step makes once comes a period apart.
    """
    found: set[int] = set()
    _, place, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    for kind in np.argsort(counts, kind="stable"):
        if counts[kind] < LEAST_STEPS:
            continue
        places = np.flatnonzero(place == kind)
        found.update(_common(places[1:] - places[:-1], 2))
        # Of a kind that a step has several times, every so many-th is a period away.
        every = range(2, min(len(places) // LEAST_STEPS, 8) + 1)
        found.update(distance for step in every for distance in _common(places[step:] - places[:-step], 1))
        if len(found) >= _TRIED:
            break
    return {distance for distance in found if distance * LEAST_STEPS <= len(tokens)}


def _common(distances: Tokens, most: int) -> list[int]:
    """So many that occur most often, of equally common ones the least first."""
    found: list[int] = []
    # Small numbers are counted without sorting.
    small = int(distances.max(initial=0)) <= _SPARSE * len(distances)
    values, counts = (None, np.bincount(distances, minlength=1)) if small else np.unique(distances, return_counts=True)
    while len(found) < most and counts[place := int(counts.argmax())]:
        found.append(place if values is None else int(values[place]))
        counts[place] = 0
    return found


def _longest(same: npt.NDArray[np.bool_], period: int) -> tuple[int, int]:
    """The begin and the length of the longest stretch in which each call is that of a period before; ``same`` says
    which calls are, from the first that has one.
    """
    turns = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).view(np.int8)))
    begins, ends = turns[::2], turns[1::2]
    if not len(begins):
        return 0, 0
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest] - begins[longest]) + period
