"""How far a running job is: the last collectives of each group, the call of each rank, the time of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcoll.core.record import State
from simcoll.core.steps import period_of
from simcoll.core.trace import AWAITED
from simcoll.live.records import Floats, Integers, Records

_SEARCHES = 8
"""Ranks at a look of whose calls a period is searched; most ranks have that of another one."""

_MOSTLY = 0.7
"""The share of calls that repeat, for a period of another rank to be a rank's own."""


_LAST_STEPS = 16
"""The steps whose median time is told."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupProgress:
    """The progress of the recorded members of each group (by the job's number) in their collectives.

    One element for each pair of a group and a rank that has a record in it: ``group``, ``rank`` (place in the table),
    ``made`` and ``done``, the sequence numbers of the last collective that was made, and that has ended.
    """

    group: Integers
    rank: Integers
    made: Integers
    done: Integers


def progress_of(records: Records) -> GroupProgress:
    """The progress of all groups."""
    mine = records.slots["p2p_sequence"] == 0
    slots = records.slots[mine]
    width = max(len(records.ranks), 1)
    pairs = records.group[mine] * width + records.rank[mine]
    keys, place = np.unique(pairs, return_inverse=True)
    made, done = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    np.maximum.at(made, place, slots["sequence"].astype(np.int64))
    ended = slots["state"] == State.COMPLETED
    np.maximum.at(done, place[ended], slots["sequence"][ended].astype(np.int64))
    return GroupProgress(keys // width, keys % width, made, done)


def current_rows(records: Records) -> Integers:
    """The row that shows where each rank is: the first call that it waits for, or else its last one; -1 for none."""
    found = np.where(np.diff(records.bounds) > 0, records.bounds[1:] - 1, -1)
    slots = records.slots
    waits = np.flatnonzero((slots["state"] <= State.STARTED) & ((slots["flags"] & AWAITED) != 0))
    ranks, first = np.unique(records.rank[waits], return_index=True)
    found[ranks] = waits[first]
    return found


def step_seconds(records: Records) -> Floats:
    """The median time of a rank's last steps in seconds, NaN where its calls do not repeat.

    A step is what :func:`simcoll.core.steps.period_of` finds: the shortest sequence of calls (group,
    signature and line) that repeats.
    """
    found = np.full(len(records.ranks), np.nan)
    tokens = records.slots["group"].astype(np.int64) << 42
    tokens += (records.slots["signature"].astype(np.int64) << 21) + records.slots["source"]
    made = records.slots["scheduled_ns"].astype(np.int64)
    periods: list[int] = []
    searched = 0
    for place, (start, stop) in enumerate(pairwise(records.bounds.tolist())):
        own = tokens[start:stop]
        period = next((one for one in periods if _repeats(own, one)), 0)
        if not period and searched < _SEARCHES:
            searched += 1
            steps = period_of(own) if len(own) else None
            if steps is not None:
                period = steps.period
                periods.append(period)
        if period:
            apart = made[start + period : stop] - made[start : stop - period]
            found[place] = float(np.median(apart[-_LAST_STEPS * period :])) / 1e9
    return found


def _repeats(tokens: Integers, period: int) -> bool:
    """True if most calls are those of a period before."""
    return len(tokens) > 2 * period and float((tokens[period:] == tokens[:-period]).mean()) > _MOSTLY
