"""Links that collectives of several groups want at once.

The collective that begins later waits for what they share. Of each rank and each kind of link, in each direction, the
time is kept in which it is taken. A collective keeps its bottleneck link for as much of its time as it uses it
(`Estimate.bottleneck.utilisation`); where the link is taken then, its own part comes behind. So the last of several
ends when the shared link has carried them all, as under fair sharing (`simcoll.estimator.time_estimator`); the first is
not slowed down, as it would be there. A collective takes a link in both directions, a message its sender's outwards and
its receiver's inwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.pricing.collective_prices import JobPrices
from simcoll.pricing.job import Floats, Integers, RecordedJob, Stream
from simcoll.topology.graph import LINKS

_FEW = 16
"""So many links of one collective are looked at one by one."""


class LinkQueue:
    """The times at which each rank's links are taken, while a job is replayed; ``lockstep`` numbers what is one."""

    def __init__(self, job: RecordedJob, prices: JobPrices, lockstep: Integers) -> None:
        self._stream, self._busy, self._link = job.collectives.stream, prices.busy, prices.link
        self._keys = [_keys(stream, lockstep) for stream in job.streams]
        self._few = [keys.tolist() if len(keys) <= _FEW else None for keys in self._keys]
        count = 2 * len(LINKS) * (int(lockstep.max(initial=-1)) + 1)
        self._from, self._until = np.zeros(count), np.zeros(count)
        # Read one by one, views are faster than arrays.
        read = self._stream, self._busy, self._link, self._from, self._until
        self._views: tuple[Any, ...] = tuple(array.data for array in read)

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """For `_replay.c`: where the keys of each stream start, all keys, when each is taken, busy times and links."""
        starts = np.cumsum([0, *map(len, self._keys)]).astype(np.int64)
        keys = np.concatenate([np.zeros(0, np.int64), *self._keys])
        return starts, keys, self._from, self._until, np.ascontiguousarray(self._busy), self._link

    def end(self, number: int, begin: float, end: float) -> float:
        """The end of a collective that begins then, given the end that it would have alone."""
        streams, busy, links, *_ = self._views
        stream, taken, link = streams[number], busy[number], links[number]
        if link < 0 or taken <= 0:
            return end
        few = self._few[stream]
        if few is None:
            return max(end, float(self._serve(self._keys[stream] + 2 * link, begin, taken).max()))
        return max(end, *[self._serve_one(key + 2 * link, begin, taken) for key in few])

    def ends(self, numbers: npt.NDArray[np.int32], begin: Floats, end: Floats) -> Floats:
        """The same for several collectives that begin at once."""
        found = end.copy()
        using = np.flatnonzero((self._link[numbers] >= 0) & (self._busy[numbers] > 0))
        if not len(using):
            return found
        wanted = [self._keys[self._stream[one]] + 2 * self._link[one] for one in numbers[using]]
        keys, lengths = np.concatenate(wanted), [len(one) for one in wanted]
        if len(using) > 1 and len(np.unique(keys)) < len(keys):
            # A rank stands in several of them: one after the other, in the order in which they begin.
            for place in using[np.argsort(begin[using], kind="stable")]:
                found[place] = self.end(int(numbers[place]), float(begin[place]), float(end[place]))
            return found
        each = np.repeat(using, lengths)
        served = self._serve(keys, begin[each], self._busy[numbers[each]])
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        found[using] = np.maximum(end[using], np.maximum.reduceat(served, starts))
        return found

    def _serve(self, keys: Integers, begin: Floats | float, busy: Floats | float) -> Floats:
        """The time at which each link has carried so many seconds more, from ``begin`` on."""
        taken, until = self._from[keys], self._until[keys]
        idle = np.maximum(taken - begin, 0.0)
        behind = (until > begin) & (busy > idle)
        served: Floats = np.where(behind, until + busy - idle, begin + busy)
        apart = served <= taken
        new = begin >= until
        self._from[keys] = np.where(apart, taken, np.where(new, begin, np.minimum(taken, begin)))
        self._until[keys] = np.where(apart, until, served)
        return served

    def _serve_one(self, key: int, begin: float, busy: float) -> float:
        """As `_serve`."""
        *_, begins, ends = self._views
        taken, until = begins[key], ends[key]
        idle = max(taken - begin, 0.0)
        served: float = until + busy - idle if until > begin and busy > idle else begin + busy
        if served > taken:
            begins[key], ends[key] = begin if begin >= until else min(taken, begin), served
        return served


def _keys(stream: Stream, lockstep: Integers) -> Integers:
    """The places of a stream's members, each with the directions (0 outwards, 1 inwards) that they use."""
    width = 2 * len(LINKS)
    if stream.message:
        return lockstep[stream.members] * width + np.arange(len(stream.members)) % 2
    members = np.unique(lockstep[stream.members]) * width
    return np.concatenate([members, members + 1])
