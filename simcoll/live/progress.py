"""How far a running job is: the last collectives of each group, the call of each rank, the time of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, State
from simcoll.core.steps import call_tokens, period_of
from simcoll.core.trace import AWAITED, HANDED_ON, ON_DEVICE
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


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The last collective that each recorded member (global rank) of a group has made, and ended.

    ``unknown`` are those whose records at hand hold no call of the group, though older ones are gone.
    """

    made: Mapping[int, int]
    done: Mapping[int, int]
    unknown: tuple[int, ...]


def members_of(
    group: Group, records: Records, progress: GroupProgress, mine: Integers, place_of: Mapping[int, int]
) -> GroupMembers:
    """The members of a group of which the rows ``mine`` of the progress tell; ``place_of`` has each rank's place."""
    made = dict(zip(progress.rank[mine].tolist(), progress.made[mine].tolist(), strict=True))
    done = dict(zip(progress.rank[mine].tolist(), progress.done[mine].tolist(), strict=True))
    recorded = [(rank, place_of[rank]) for rank in group.ranks if rank in place_of]
    known = [(rank, place) for rank, place in recorded if place in made or records.whole[place]]
    return GroupMembers(
        {rank: made.get(place, 0) for rank, place in known},
        {rank: done.get(place, 0) for rank, place in known},
        tuple(rank for rank, place in recorded if place not in made and not records.whole[place]),
    )


def current_rows(records: Records, asleep: npt.NDArray[np.bool_]) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """The row that shows where each rank is, and whether the rank waits there.

    It is the first call that the rank waits for, or else its last one; -1 for none. A rank waits for a call that a
    thread awaits. Nobody sees the wait for a future that was taken, as in C++ by DDP: a rank waits for one while its
    process is ``asleep``, or a device runs the call.
    """
    found = np.where(np.diff(records.bounds) > 0, records.bounds[1:] - 1, -1)
    flags = records.slots["flags"]
    unseen = asleep[records.rank] | ((flags & ON_DEVICE) != 0)
    held = ((flags & AWAITED) != 0) | (((flags & HANDED_ON) != 0) & unseen)
    rows = np.flatnonzero((records.slots["state"] <= State.STARTED) & held)
    ranks, first = np.unique(records.rank[rows], return_index=True)
    found[ranks] = rows[first]
    waits = np.zeros(len(found), np.bool_)
    waits[ranks] = True
    return found, waits


def step_seconds(records: Records) -> Floats:
    """The median time of a rank's last steps in seconds, NaN where its calls do not repeat.

    A step is what :func:`simcoll.core.steps.period_of` finds: the shortest sequence of calls
    (:func:`simcoll.core.steps.call_tokens`) that repeats.
    """
    found = np.full(len(records.ranks), np.nan)
    tokens = call_tokens(records.slots, records.rank)
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
