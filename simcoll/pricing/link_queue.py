"""Links that collectives of different groups want at the same time: whoever begins later waits for what they share.

Of each rank and each kind of link, in each direction, the time is kept in which it is taken. A collective keeps its
bottleneck link for as much of its time as it uses it (`Estimate.bottleneck.utilisation`); where the link is taken then,
its own part comes behind. So the last of several ends when the shared link has carried them all, as under fair sharing
(`simcoll.estimator.timeline`); the first is not slowed down, as it would be there. A collective takes a link in both
directions, a message its sender's outwards and its receiver's inwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcoll.pricing.collective_prices import JobPrices
from simcoll.pricing.job import Floats, Job
from simcoll.topology.graph import LINKS

Places = npt.NDArray[np.int64]


class LinkQueue:
    """When each rank's links are taken, while a job is replayed."""

    def __init__(self, job: Job, prices: JobPrices) -> None:
        self._stream, self._busy, self._link = job.collectives.stream, prices.busy, prices.link
        self._ways = [_ways(stream.members, message=stream.message) for stream in job.streams]
        shape = len(job.programs), 2 * len(LINKS)
        self._from, self._until = np.zeros(shape), np.zeros(shape)
        self._mark = np.zeros(shape[0] * shape[1], np.int64)

    def ends(self, ready: npt.NDArray[np.int32], begin: Floats, end: Floats) -> Floats:
        """When these collectives end, that would end so if they were alone."""
        using = np.flatnonzero((self._link[ready] >= 0) & (self._busy[ready] > 0))
        if not len(using):
            return end
        lengths = [len(self._ways[stream][0]) for stream in self._stream[ready[using]]]
        members = np.concatenate([self._ways[stream][0] for stream in self._stream[ready[using]]])
        ways = np.concatenate([self._ways[stream][1] for stream in self._stream[ready[using]]])
        each = np.repeat(np.arange(len(using)), lengths)
        ways = ways + 2 * self._link[ready[using]][each]
        keys = members * self._from.shape[1] + ways
        if len(using) > 1 and self._meet(keys):
            # A rank stands in several of them: one after the other, in the order in which they begin.
            found = end.copy()
            for place in using[np.argsort(begin[using], kind="stable")]:
                found[place] = self.ends(ready[place, None], begin[place, None], end[place, None])[0]
            return found
        served = self._serve(members, ways, begin[using][each], self._busy[ready[using]][each])
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        found = end.copy()
        found[using] = np.maximum(end[using], np.maximum.reduceat(served, starts))
        return found

    def _meet(self, keys: Places) -> bool:
        """Whether a link is named twice."""
        self._mark[keys] = np.arange(len(keys))
        return bool((self._mark[keys] != np.arange(len(keys))).any())

    def _serve(self, members: Places, ways: Places, begin: Floats, busy: Floats) -> Floats:
        """When each link has carried so many seconds more, from ``begin`` on."""
        taken, until = self._from[members, ways], self._until[members, ways]
        idle = np.maximum(taken - begin, 0.0)
        behind = (until > begin) & (busy > idle)
        served = np.where(behind, until + busy - idle, begin + busy)
        apart = served <= taken
        new = begin >= until
        self._from[members, ways] = np.where(apart, taken, np.where(new, begin, np.minimum(taken, begin)))
        self._until[members, ways] = np.where(apart, until, served)
        return served


def _ways(members: npt.NDArray[np.int32], *, message: bool) -> tuple[Places, Places]:
    """The members' columns and the directions (0 outwards, 1 inwards) that they use."""
    columns = members.astype(np.int64)
    if message:
        return columns, np.arange(len(columns), dtype=np.int64) % 2
    return np.concatenate([columns, columns]), np.repeat(np.arange(2, dtype=np.int64), len(columns))
