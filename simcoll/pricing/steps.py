"""Where a rank's program repeats itself: the steps of a training loop, found in the sequence of its calls alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.core.trace import ON_DEVICE, Slots, Trace
from simcoll.verifier.agreement.columns import fingerprint

_LEAST = 3
"""A sequence of calls is a step if it comes at least so often, one after the other."""

_COVERED = 0.5
"""So much of all calls must stand in steps."""

_AS_GOOD = 0.9
"""A shorter period is preferred to one that covers a little more."""

_TRIED = 48

Tokens = npt.NDArray[np.int64]


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


def steps_of(traces: Sequence[Trace], instances: Sequence[npt.NDArray[np.int32]]) -> tuple[Steps | None, ...]:
    """The steps of each rank, None where its calls do not repeat; calls that were not matched are passed over."""
    known: dict[bytes, Steps | None] = {}
    found = []
    for trace, own in zip(traces, instances, strict=True):
        tokens = _tokens(trace, own)
        key = fingerprint(tokens)
        if key not in known:
            steps = period_of(tokens)
            known[key] = None if steps is None else _turned(steps, _pauses(trace, own))
        found.append(known[key])
    return tuple(found)


def _tokens(trace: Trace, own: npt.NDArray[np.int32]) -> Tokens:
    """One number a call: equal for calls of one group, signature and line."""
    slots = trace.slots[own >= 0] if (own < 0).any() else trace.slots
    columns = [slots[name].astype(np.int64) for name in ("group", "signature", "source")]
    tokens = columns[0]
    for column in columns[1:]:
        tokens = tokens * (int(column.max(initial=0)) % (1 << 20) + 1) + column % (1 << 20)
    return tokens


def came_ns(slots: Slots) -> npt.NDArray[np.uint64]:
    """When a rank came to each call: when it made it, or when its device began it, where a device ran it.

    A host queues calls long before its device comes to them, so that its own times say nothing of what is between.
    """
    on_device = (slots["flags"] & ON_DEVICE) != 0
    found: npt.NDArray[np.uint64] = np.where(on_device, slots["started_ns"], slots["scheduled_ns"])
    return found


def _pauses(trace: Trace, own: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Seconds before each call since the one before was made, or had ended if it had."""
    slots = trace.slots[own >= 0]
    made, ended = came_ns(slots).astype(np.float64), slots["finished_ns"].astype(np.float64)
    before = np.where(ended[:-1] <= made[1:], np.maximum(made[:-1], ended[:-1]), made[:-1])
    return np.concatenate([[0.0], np.maximum(made[1:] - before, 0.0)]) / 1e9


def _turned(steps: Steps, pauses: npt.NDArray[np.float64]) -> Steps:
    """The same steps, from the call on before which the rank pauses longest; ranks with equal calls turn alike."""
    if steps.count <= _LEAST:
        return steps
    longest = int(np.median(pauses[steps.first : steps.stop].reshape(steps.count, steps.period), axis=0).argmax())
    return steps if longest == 0 else Steps(steps.first + longest, steps.period, steps.count - 1)


def period_of(tokens: Tokens) -> Steps | None:
    """The shortest sequence whose repetition makes up most of all calls; what comes before and after may differ."""
    best: tuple[int, int, int] | None = None
    for period in sorted(_candidates(tokens)):
        first, covered = _longest(tokens, period)
        if covered // period < _LEAST or covered < _COVERED * len(tokens):
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
        if counts[kind] < _LEAST:
            continue
        places = np.flatnonzero(place == kind)
        found.update(_common(np.diff(places)))
        # Of a kind that a step has several times, every so many-th is a period away.
        every = range(2, min(len(places) // _LEAST, 8) + 1)
        found.update(distance for step in every for distance in _common(places[step:] - places[:-step])[:1])
        if len(found) >= _TRIED:
            break
    return {distance for distance in found if distance * _LEAST <= len(tokens)}


def _common(distances: Tokens) -> list[int]:
    values, counts = np.unique(distances, return_counts=True)
    return [int(value) for value in values[np.argsort(-counts, kind="stable")[:2]]]


def _longest(tokens: Tokens, period: int) -> tuple[int, int]:
    """Where the longest stretch begins in which each call is that of a period before, and how long it is."""
    same = np.concatenate([[False], tokens[period:] == tokens[:-period], [False]])
    turns = np.flatnonzero(np.diff(same.astype(np.int8)))
    begins, ends = turns[::2], turns[1::2]
    if not len(begins):
        return 0, 0
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest] - begins[longest]) + period
