"""The waves of a replay in C (`_replay.c`), where it was compiled; `simcoll.pricing.replay` has the twin in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.pricing.job import Floats, Integers, Places
from simcoll.pricing.link_queue import LinkQueue

_QUEUE = 6
"""Arrays of `LinkQueue.arrays`."""

CALL = np.dtype(
    {
        "names": ["last", "begin", "end", "seconds", "left", "head", "stream", "done"],
        "formats": ["f8", "f8", "f8", "f8", "i4", "i4", "i4", "?"],
        "itemsize": 48,
    }
)
"""What a replay keeps of a collective, as `_replay.c` has it: when the last rank came, its begin, end and price, the
number of ranks that have not come, who waits for it, its stream, and whether it has ended.
"""


_AT_ONCE = 1 << 14
"""Collectives whose fields are filled while they are in the processor's cache."""


def new_calls(seconds: Floats, came: Places, stream: Places) -> npt.NDArray[Any]:
    """Collectives to which nobody has come yet, of these prices, numbers of ranks and streams."""
    calls = np.empty(len(seconds), CALL)
    for start in range(0, len(calls), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        some = calls[part]
        some.view(np.uint8)[:] = 0
        some["seconds"], some["left"], some["stream"], some["head"] = seconds[part], came[part], stream[part], -1
    return calls


@dataclass(frozen=True, slots=True, eq=False)
class WaveState:
    """What waves read and change, in the order of the struct in `_replay.c`.

    Of each operation its kind, collective, compute before it and time of arrival; of each in lockstep the bounds of its
    operations, how many they are, the next operation, the time and its course; of each stream when it is free.
    """

    kind: npt.NDArray[np.uint8]
    instance: Places
    gap: Floats
    arrived: Floats
    offsets: Integers
    size: Integers
    at: Integers
    now: Floats
    courses: Integers
    calls: npt.NDArray[Any]
    free: Floats
    seen: Integers


@dataclass(frozen=True, slots=True, eq=False)
class CourseTimes:
    """Ranks in lockstep that compute differently: a column each, of gaps and arrivals, and the time of each."""

    gap: Floats
    arrived: Floats
    now: Floats


def course_table(courses: Sequence[CourseTimes | None]) -> Integers:
    """The width of each, and the addresses of its arrays; those in lockstep who all compute alike have a width of 1."""
    rows = [
        (1, 0, 0, 0) if one is None else (len(one.now), *map(_address, (one.gap, one.arrived, one.now)))
        for one in courses
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


class CompiledWaves:
    """Runs waves in C on the arrays of a replay."""

    def __init__(self, module: Any, state: WaveState, links: LinkQueue | None) -> None:
        self._module, self._state = module, state
        many = len(state.at)
        self._going, self._held = np.zeros(many, np.int64), np.zeros(many, np.int64)
        self._since = np.zeros(many, np.int64)
        lists = (np.zeros(many, np.int64), np.zeros(2 * many, np.int64), np.zeros(many, np.int64))
        due = np.zeros(3 * many, np.int64)
        queue = () if links is None else links.arrays()
        # They have to live as long as their addresses are used.
        self._arrays = [*(getattr(state, one.name) for one in fields(state)), *queue]
        self._arrays += [self._going, self._held, *lists, self._since, due]
        addresses = [*map(_address, self._arrays)]
        if links is None:
            place = len(fields(state))
            addresses[place:place] = [0] * _QUEUE
        self._table = np.array([*addresses, 0, 0, 0], np.int64)
        self._counts = self._table[-3:-1]

    def run(self, fresh: Integers, held: Integers) -> Integers:
        """Waves until nobody can go on, first of all ``fresh``; returns those that wait, in the order of coming."""
        self._going[: len(fresh)], self._held[: len(held)] = fresh, held
        self._counts[:] = len(fresh), len(held)
        self._module.run(_address(self._table))
        at, offsets = self._state.at, self._state.offsets
        waiting = np.flatnonzero(at < offsets[1:])
        self._state.calls["head"][self._state.instance[at[waiting]]] = -1
        found: Integers = waiting[np.argsort(self._since[waiting])]
        return found


def _address(array: npt.NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError(f"the array has strides {array.strides}, expected a contiguous one")
    address: int = array.__array_interface__["data"][0]
    return address
