"""Replays a job in virtual time: when each collective would run, and how long each rank would wait for it.

All ranks go on at once, call by call: a *wave* takes every rank that can go on over its next operation, with a few
numpy operations for all of them. A collective begins when its last rank has come and its stream is free, as on a real
communicator. Time is dataflow: the result does not depend on the order of the waves, but for links that two
collectives of different groups want at once.

:class:`LinkQueue` shares such links: the collective that begins later waits for what they share. Of each rank and each
kind of link, in each direction, the time is kept in which it is taken. A collective keeps its bottleneck link for as
much of its time as it uses it (`Estimate.bottleneck.utilisation`); where the link is taken then, its own part comes
behind. So the last of several ends when the shared link has carried them all, as under fair sharing
(`simcoll.estimator.time_estimator`); the first is not slowed down, as it would be there. A collective takes a link in
both directions, a message its sender's outwards and its receiver's inwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.pricing.collective_prices import JobPrices
from simcoll.pricing.job import Floats, Integers, RecordedJob
from simcoll.pricing.rank_program import BLOCK, LAUNCH, WAIT
from simcoll.topology.graph import LINKS

Places = npt.NDArray[np.int64]


class LinkQueue:
    """The times at which each rank's links are taken, while a job is replayed."""

    def __init__(self, job: RecordedJob, prices: JobPrices) -> None:
        self._stream, self._busy, self._link = job.collectives.stream, prices.busy, prices.link
        self._ways = [_ways(stream.members, message=stream.message) for stream in job.streams]
        shape = len(job.programs), 2 * len(LINKS)
        self._from, self._until = np.zeros(shape), np.zeros(shape)
        self._mark = np.zeros(shape[0] * shape[1], np.int64)

    def ends(self, ready: npt.NDArray[np.int32], begin: Floats, end: Floats) -> Floats:
        """The ends of these collectives, given the ends that they would have alone."""
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
        """True if a link is named twice."""
        self._mark[keys] = np.arange(len(keys))
        return bool((self._mark[keys] != np.arange(len(keys))).any())

    def _serve(self, members: Places, ways: Places, begin: Floats, busy: Floats) -> Floats:
        """The time at which each link has carried so many seconds more, from ``begin`` on."""
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


_NOBODY = -1
_FEW, _MANY = 16, 64
"""Ranks that go on one by one, at first and later on."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """The times of a replay, in seconds from its begin.

    Of each collective: its begin and end, when its first and its last rank came, the column of the last, and seconds
    that ranks were held up by it while it ran (``exposed``) and before (``waited``), all ranks together. Of each rank:
    the same two, seconds of compute, and its end. ``arrived`` is when each operation of all programs (end to end,
    ``offsets``) was reached. ``let_go`` lists those that were not waited for because no rank could have gone on,
    ``cut_short`` counts collectives that did not wait for all ranks that come.
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
    arrived: Floats
    offsets: Integers
    let_go: Integers
    cut_short: int

    @property
    def seconds(self) -> float:
        """Until the last rank has ended."""
        return float(self.rank_end.max(initial=0.0))


def replay(job: RecordedJob, prices: JobPrices) -> Replayed:
    """Run the job's programs with these prices."""
    return _Replay(job, prices).run()


class _Replay:
    """The state of a replay. ``at`` is each rank's next operation, ``held`` are ranks that wait."""

    def __init__(self, job: RecordedJob, prices: JobPrices) -> None:
        self._job, self._seconds = job, prices.seconds
        self._stream = job.collectives.stream
        lengths = [len(program) for program in job.programs]
        self._offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._kind = _joined([program.kind for program in job.programs], np.uint8)
        self._instance = _joined([program.instance for program in job.programs], np.int32)
        self._gap = _joined([program.gap for program in job.programs], np.float64)
        count, ranks = len(job.collectives), len(job.programs)
        self._left = job.collectives.came.copy()
        self._done = np.zeros(count, np.bool_)
        self._begin, self._end, self._last = np.zeros(count), np.zeros(count), np.zeros(count)
        self._now, self._at = np.zeros(ranks), self._offsets[:-1].copy()
        self._free = np.zeros(len(job.streams))
        self._mark, self._stream_mark = np.zeros(count, np.int64), np.zeros(len(job.streams), np.int64)
        self._arrived = np.zeros(len(self._kind))
        # Where every call blocks, a rank has one call at a time, and no link is wanted twice.
        overlapping = bool((self._kind == LAUNCH).any())
        self._links = LinkQueue(job, prices) if overlapping else None
        self._let_go: list[Integers] = []
        self._cut_short = 0

    def run(self) -> Replayed:
        """Wave after wave, until no rank has anything left to do."""
        fresh, held = np.arange(len(self._now)), np.zeros(0, np.int64)
        while True:
            fresh = fresh[self._at[fresh] < self._offsets[fresh + 1]]
            if 0 < len(fresh) <= _FEW and self._links is None:
                fresh, held = self._one_by_one(fresh, held)
                continue
            if len(fresh):
                kinds = self._come(fresh)
                going = fresh[kinds == LAUNCH]
                held = np.concatenate([held, fresh[kinds != LAUNCH]])
            elif len(held):
                going = self._force(held)
                held = held[~np.isin(held, going)]
            else:
                break
            free = self._done[self._instance[self._at[held]]]
            released, held = held[free], held[~free]
            self._release(released)
            fresh = np.concatenate([going, released])
            self._at[fresh] += 1
        return self._result()

    def _one_by_one(self, fresh: Integers, held: Integers) -> tuple[Integers, Integers]:
        """Let ranks go on one at a time for as long as few can, as down a pipeline: a wave looks at all that wait.

        Returns those that can go on and those that wait. Every call blocks here, so that the order does not matter.
        """
        now, at, ends = self._now.data, self._at.data, self._offsets[1:].data
        last, left, done, end = self._last.data, self._left.data, self._done.data, self._end.data
        gap, instance, arrived = self._gap.data, self._instance.data, self._arrived.data
        waiting: dict[int, list[int]] = {}
        for rank, mine in zip(held.tolist(), self._instance[self._at[held]].tolist(), strict=True):
            waiting.setdefault(mine, []).append(rank)
        going = fresh.tolist()
        while going and len(going) <= _MANY:
            rank = going.pop()
            place = at[rank]
            if place >= ends[rank]:
                continue
            now[rank] = arrived[place] = came = now[rank] + gap[place]
            mine = instance[place]
            last[mine] = max(last[mine], came)
            left[mine] -= 1
            waiting.setdefault(mine, []).append(rank)
            if left[mine] == 0 and not done[mine]:
                self._settle(np.array([mine], np.int32))
            for other in waiting.pop(mine) if done[mine] else ():
                now[other] = max(now[other], end[mine])
                at[other] += 1
                going.append(other)
        return np.array(going, np.int64), np.array(
            sorted(rank for ranks in waiting.values() for rank in ranks), np.int64
        )

    def _come(self, ranks: Integers) -> npt.NDArray[np.uint8]:
        """These ranks come to their next operations; collectives to which all have come then are settled."""
        at = self._at[ranks]
        kinds: npt.NDArray[np.uint8] = self._kind[at]
        now = self._now[ranks] + self._gap[at]
        self._now[ranks] = self._arrived[at] = now
        calls = kinds != WAIT
        if not calls.all():
            at, now = at[calls], now[calls]
        mine = self._instance[at]
        np.maximum.at(self._last, mine, now)
        np.subtract.at(self._left, mine, 1)
        ready = mine[(self._left[mine] == 0) & ~self._done[mine]]
        if len(ready):
            # Each once, by whichever of its ranks wrote its place last.
            self._mark[ready] = np.arange(len(ready))
            self._settle(ready[self._mark[ready] == np.arange(len(ready))])
        return kinds

    def _settle(self, ready: npt.NDArray[np.int32]) -> None:
        """All who come have come: these collectives run, each when its stream is free."""
        stream = self._stream[ready]
        if len(ready) > 1:
            self._stream_mark[stream] = np.arange(len(ready))
            if (self._stream_mark[stream] != np.arange(len(ready))).any():
                # Ranks that made their calls in other orders; a stream takes one after the other.
                for one in np.sort(ready):
                    self._settle(np.array([one], np.int32))
                return
        begin = np.maximum(self._last[ready], self._free[stream])
        end = begin + self._seconds[ready]
        if self._links is not None:
            end = self._links.ends(ready, begin, end)
        self._begin[ready], self._end[ready], self._free[stream] = begin, end, end
        self._done[ready] = True

    def _release(self, ranks: Integers) -> None:
        """These ranks go on: what they waited for has ended, or ends while they wait."""
        self._now[ranks] = np.maximum(self._now[ranks], self._end[self._instance[self._at[ranks]]])

    def _force(self, held: Integers) -> Integers:
        """Break a deadlock of the replay: buffer sends, else skip waits, else run one call with the ranks that came.

        Returns the ranks that go on. The real run went on here: its
        messages were buffered, a wait was not where it is taken to be, or the records have gaps.
        """
        at = self._at[held]
        mine = self._instance[at]
        senders = np.array(
            [
                stream.message and stream.members[0] == rank
                for rank, stream in zip(held, (self._job.streams[self._stream[one]] for one in mine), strict=True)
            ],
            np.bool_,
        )
        blocking = self._kind[at] == BLOCK
        for going in (senders & blocking, ~blocking):
            if going.any():
                self._let_go.append(at[going])
                released: Integers = held[going]
                return released
        self._cut_short += 1
        self._settle(mine[np.argmin(self._last[mine])][None])
        return np.zeros(0, np.int64)

    def _result(self) -> Replayed:
        """Sums up the waits by collective and by rank, from when the ranks came and when each collective ended."""
        count, ranks = len(self._begin), len(self._now)
        first, late = np.full(count, np.inf), np.full(count, _NOBODY, np.int32)
        waited, exposed = np.zeros(count), np.zeros(count)
        of_rank = np.zeros((3, ranks))
        let_go = np.sort(np.concatenate([np.zeros(0, np.int64), *self._let_go]))
        for rank in range(ranks):
            own = slice(self._offsets[rank], self._offsets[rank + 1])
            free = let_go[slice(*np.searchsorted(let_go, [own.start, own.stop]))] - own.start
            held = held_up(self._kind[own], self._arrived[own], self._instance[own], self._last, self._end, free)
            mine, arrived = self._instance[own], self._arrived[own]
            # A wait and its call are two operations on one collective.
            np.add.at(waited, mine, held[0])
            np.add.at(exposed, mine, held[1])
            calls = self._kind[own] != WAIT
            mine, arrived = (mine, arrived) if calls.all() else (mine[calls], arrived[calls])
            first[mine] = np.minimum(first[mine], arrived)
            late[mine[arrived >= self._last[mine]]] = rank
            of_rank[:, rank] = held[0].sum(), held[1].sum(), self._gap[own].sum()
        return Replayed(
            self._begin,
            self._end,
            np.where(np.isfinite(first), first, self._begin),
            self._last,
            late,
            exposed,
            waited,
            of_rank[1],
            of_rank[0],
            of_rank[2],
            self._now,
            self._arrived,
            self._offsets,
            let_go,
            self._cut_short,
        )


def held_up(
    kind: npt.NDArray[np.uint8],
    arrived: Floats,
    instance: npt.NDArray[np.int32],
    last: Floats,
    end: Floats,
    free: Integers,
) -> tuple[Floats, Floats]:
    """Seconds that each operation of a rank waits: for the last who comes to the collective, and for its end.

    ``free`` are the places of those that were not waited for.
    """
    came, until = last[instance], end[instance]
    waited = np.maximum(np.minimum(came, until) - arrived, 0.0)
    exposed = np.maximum(until - np.maximum(arrived, came), 0.0)
    if (goes_on := kind == LAUNCH).any():
        waited[goes_on] = exposed[goes_on] = 0.0
    waited[free] = exposed[free] = 0.0
    return waited, exposed


def _joined(parts: Sequence[npt.NDArray[Any]], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *parts])
