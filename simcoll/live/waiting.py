"""The waiting of the ranks of a running job: the share of time that each waits, and that others wait for it.

The clock of a rank alone measures how long it was inside a collective, so that clocks of hosts need not agree: the rank
that comes last is inside for the shortest time. A rank *waits* in a collective for as long as it waited there longer
than the last one was inside, and the last one is *late* by the shortest of these times. Where a device runs the calls,
its times are taken. In an asynchronous call a host computes before it waits (:mod:`simcoll.core.waits`); calls of which
nobody saw the wait are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcoll.core.waits import waited_ns
from simcoll.live.records import Floats, Integers, Records
from simcoll.pricing.rank_program import came_ns

_LEAST_SPAN = 1e-3
"""Seconds below which shares of time say nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Of each rank: the share of its recent time in which it waited for others, and in which others waited for it.

    ``late`` counts only the time by which the rank was later than every other member. NaN where nothing tells.
    """

    waiting: Floats
    late: Floats


def shares_of(records: Records, sizes: Integers) -> Shares:
    """The shares of time; ``sizes`` are the numbers of members of the job's groups."""
    slots = records.slots
    begun = came_ns(slots).astype(np.int64)
    waits = waited_ns(slots, begun, records.rank)
    rows = np.flatnonzero((slots["p2p_sequence"] == 0) & (waits >= 0))
    inside = (slots["finished_ns"].astype(np.int64) - begun)[rows] / 1e9
    order = np.lexsort((inside, slots["sequence"][rows], records.group[rows]))
    rows, inside = rows[order], inside[order]
    group, sequence = records.group[rows], slots["sequence"][rows]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (group[1:] != group[:-1]) | (sequence[1:] != sequence[:-1])
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, len(rows)))
    # Only collectives of which every member's time is at hand tell who came last.
    known = (counts == sizes[group[starts]]) & (counts > 1) if len(starts) else np.zeros(0, np.bool_)
    waited = np.maximum(waits[rows] / 1e9 - np.repeat(inside[starts], counts), 0.0)
    waited[starts] = 0.0
    waited[~np.repeat(known, counts)] = 0.0
    total = len(records.ranks)
    waiting = np.bincount(records.rank[rows], waited, total)
    last = starts[known]
    others = np.where(first, np.inf, waited)
    late = np.bincount(
        records.rank[rows[last]], np.minimum.reduceat(others, starts)[known] if len(starts) else [], total
    )
    span = _spans(records)
    told = np.bincount(records.rank[rows], np.repeat(known, counts), total) > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        usable = told & (span >= _LEAST_SPAN)
        shares = (np.where(usable, np.clip(one / span, 0, 1), np.nan) for one in (waiting, late))
        return Shares(*shares)


def _spans(records: Records) -> Floats:
    """The seconds that each rank's records cover."""
    span = np.zeros(len(records.ranks))
    has = np.flatnonzero(np.diff(records.bounds))
    first, last = records.bounds[has], records.bounds[has + 1] - 1
    ended = np.maximum(records.slots["finished_ns"][last], records.slots["scheduled_ns"][last]).astype(np.int64)
    span[has] = (ended - records.slots["scheduled_ns"][first].astype(np.int64)) / 1e9
    return span
