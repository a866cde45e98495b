"""Replays a job in virtual time: when each collective would run, and how long each rank would wait for it.

All ranks go on at once, call by call: a *wave* takes every rank that can go on over its next operation. Ranks that make
the same operations are one (`simcoll.pricing.lockstep`). Where many go on, a wave is a few numpy operations for all of
them; where few do, as down a pipeline, it goes from one to the next, and looks only at those whom it releases. A
collective begins when its last rank has come and its stream is free, as on a real communicator. Time is dataflow: the
result does not depend on the order of the waves, but for links that two collectives of different groups want at once
(`simcoll.pricing.link_queue`). Where `_replay.c` was compiled, it goes from one to the next however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.native import native
from simcoll.pricing.collective_prices import JobPrices
from simcoll.pricing.compiled_waves import CompiledWaves, CourseTimes, WaveState, course_table, new_calls
from simcoll.pricing.job import Integers, RecordedJob
from simcoll.pricing.link_queue import LinkQueue
from simcoll.pricing.lockstep import FEW, Lockstep, each_alone, in_lockstep
from simcoll.pricing.rank_program import BLOCK, LAUNCH, WAIT
from simcoll.pricing.replayed import Replayed, Times, replayed

_FEW, _MANY = 16, FEW
"""Those that go on one by one, at first and later on."""


def replay(job: RecordedJob, prices: JobPrices) -> Replayed:
    """Run the job's programs with these prices."""
    found = _Replay(job, prices, in_lockstep(job)).run()
    # Of collectives whose ranks came at the same time, it depends on the order of the ranks which is cut short.
    return _Replay(job, prices, each_alone(job)).run() if found.cut_short else found


class _Course(CourseTimes):
    """The courses of ranks in lockstep, one after the other operation."""

    def come(self, place: int) -> float:
        """They come to an operation; when the last of them does."""
        self.now[:] += self.gap[place]
        self.arrived[place] = self.now
        return float(self.now.max())

    def release(self, end: float) -> None:
        """They go on; what they waited for ends then."""
        np.maximum(self.now, end, out=self.now)


def _course(together: Lockstep) -> _Course | None:
    """None where all compute alike."""
    if len(together.programs) == 1:
        return None
    gap = np.ascontiguousarray(together.gaps())
    return _Course(gap, np.zeros(gap.shape), np.zeros(gap.shape[1]))


class _Replay:
    """The state of a replay. ``at`` is the next operation of all in lockstep, ``held`` are those that wait."""

    def __init__(self, job: RecordedJob, prices: JobPrices, lockstep: list[Lockstep]) -> None:
        self._job, self._lockstep = job, lockstep
        self._courses = [*map(_course, self._lockstep)]
        self._wide = any(self._courses)
        self._size = np.array([len(one.columns) for one in self._lockstep], np.int64)
        lengths = [len(one.kind) for one in self._lockstep]
        self._offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._kind = _joined([one.kind for one in self._lockstep], np.uint8)
        self._instance = _joined([one.instance for one in self._lockstep], np.int32)
        self._gap = _joined([one.programs[0].gap for one in self._lockstep], np.float64)
        count, many = len(job.collectives), len(self._lockstep)
        self._calls = new_calls(prices.seconds, job.collectives.came, job.collectives.stream)
        self._seconds, self._left, self._stream = (self._calls[name] for name in ("seconds", "left", "stream"))
        self._begin, self._end, self._last, self._done = (
            self._calls[name] for name in ("begin", "end", "last", "done")
        )
        self._now, self._at = np.zeros(many), self._offsets[:-1].copy()
        self._free = np.zeros(len(job.streams))
        each = (self._stream, self._seconds, self._last, self._free, self._begin, self._end, self._done)
        # Views are read one by one faster than arrays; numpy calls one of floats one of integers.
        self._views: Any = tuple(array.data for array in each)
        self._mark, self._stream_mark = np.zeros(count, np.int64), np.zeros(len(job.streams), np.int64)
        self._arrived = np.zeros(len(self._kind))
        # Where every call blocks, a rank has one call at a time, and no link is wanted twice.
        overlapping = bool((self._kind == LAUNCH).any())
        self._links = LinkQueue(job, prices, self._numbers()) if overlapping else None
        self._compiled = self._in_c()
        self._let_go: list[Integers] = []
        self._cut_short = 0

    def _in_c(self) -> CompiledWaves | None:
        """The waves in C, where they were compiled."""
        if (module := native("simcoll.pricing._replay")) is None:
            return None
        state = WaveState(
            self._kind,
            self._instance,
            self._gap,
            self._arrived,
            self._offsets,
            self._size,
            self._at,
            self._now,
            course_table(self._courses),
            self._calls,
            self._free,
            np.zeros(len(self._free), np.int64),
        )
        return CompiledWaves(module, state, self._links)

    def _numbers(self) -> Integers:
        """Of each column those with which it is in lockstep."""
        found = np.zeros(len(self._job.programs), np.int64)
        for number, one in enumerate(self._lockstep):
            found[list(one.columns)] = number
        return found

    def run(self) -> Replayed:
        """Wave after wave, until no rank has anything left to do."""
        fresh, held = np.arange(len(self._now)), np.zeros(0, np.int64)
        while True:
            fresh = fresh[self._at[fresh] < self._offsets[fresh + 1]]
            if len(fresh) and self._compiled is not None:
                fresh, held = fresh[:0], self._compiled.run(fresh, held)
                continue
            if len(fresh) and (self._wide or len(fresh) <= _FEW):
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
        """Waves for as long as few go on: they go one after the other, and wake those who wait for what they complete.

        Returns those that can go on and those that wait, in their order.
        """
        # One function, as a call for each operation would take as long as the operation itself.
        # Views of arrays, and lists of what each in lockstep has: both are read one by one faster than arrays.
        last, left, done, end = self._last.data, self._left.data, self._done.data, self._end.data
        gap, kind, instance, arrived = self._gap.data, self._kind.data, self._instance.data, self._arrived.data
        now, at, stops, size = self._now.tolist(), self._at.tolist(), self._offsets[1:].tolist(), self._size.tolist()
        offsets, courses = self._offsets.tolist(), self._courses
        waiting: dict[int, list[int]] = {}
        since = [0] * len(at)
        for serial, one in enumerate(held.tolist()):
            since[one] = serial
            waiting.setdefault(instance[at[one]], []).append(one)
        serial, going = len(held), fresh.tolist()
        most = len(at) if self._wide else _MANY
        while going and len(going) <= most:
            further, woken, ready = [], [], []
            for one in going:
                place = at[one]
                if place >= stops[one]:
                    continue
                mine, what, course = instance[place], kind[place], courses[one]
                if course is None:
                    now[one] = arrived[place] = came = now[one] + gap[place]
                else:
                    came = course.come(place - offsets[one])
                if what != WAIT:
                    if came > last[mine]:
                        last[mine] = came
                    left[mine] = missing = left[mine] - size[one]
                    if not missing and not done[mine]:
                        ready.append(mine)
                if what == LAUNCH:
                    at[one] = place + 1
                    further.append(one)
                    continue
                since[one] = serial = serial + 1
                if mine in waiting:
                    waiting[mine].append(one)
                else:
                    waiting[mine] = [one]
                if done[mine]:
                    woken.append(mine)
            if ready:
                self._settle_few(ready)
                woken += ready
            released = []
            for mine in woken:
                ended = end[mine]
                for one in waiting.pop(mine, ()):
                    released.append(one)
                    at[one] += 1
                    course = courses[one]
                    if course is not None:
                        course.release(ended)
                    elif ended > now[one]:
                        now[one] = ended
            if len(woken) > 1:
                released.sort(key=since.__getitem__)
            going = further + released
        self._now[:], self._at[:] = now, at
        still = sorted((one for ranks in waiting.values() for one in ranks), key=since.__getitem__)
        return np.array(going, np.int64), np.array(still, np.int64)

    def _settle_few(self, ready: list[int]) -> None:
        """As `_settle`, one after the other."""
        (stream, seconds, last, free, begins, ends, done), links = self._views, self._links
        if len(ready) > 1:
            if len({stream[one] for one in ready}) < len(ready):
                ready.sort()
            elif links is not None:
                ready.sort(key=lambda one: max(last[one], free[stream[one]]))
        for one in ready:
            own = stream[one]
            begin = last[one]
            if free[own] > begin:
                begin = free[own]
            end = begin + seconds[one]
            if links is not None:
                end = links.end(one, begin, end)
            begins[one], ends[one], free[own], done[one] = begin, end, end, True

    def _come(self, fresh: Integers) -> npt.NDArray[np.uint8]:
        """These come to their next operations; collectives to which all have come then are settled."""
        at = self._at[fresh]
        kinds: npt.NDArray[np.uint8] = self._kind[at]
        now = self._now[fresh] + self._gap[at]
        self._now[fresh] = self._arrived[at] = now
        calls, size = kinds != WAIT, self._size[fresh]
        if not calls.all():
            at, now, size = at[calls], now[calls], size[calls]
        mine = self._instance[at]
        np.maximum.at(self._last, mine, now)
        np.subtract.at(self._left, mine, size)
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
        """These go on: what they waited for has ended, or ends while they wait."""
        ends = self._end[self._instance[self._at[ranks]]]
        self._now[ranks] = np.maximum(self._now[ranks], ends)
        if self._wide:
            for one, end in zip(ranks.tolist(), ends.tolist(), strict=True):
                if (course := self._courses[one]) is not None:
                    course.release(end)

    def _force(self, held: Integers) -> Integers:
        """Break a deadlock of the replay: buffer sends, else skip waits, else run one call with the ranks that came.

        Returns those that go on. The real run went on here: its
        messages were buffered, a wait was not where it is taken to be, or the records have gaps.
        """
        at = self._at[held]
        mine = self._instance[at]
        senders = np.array([self._sends(int(one), int(number)) for one, number in zip(held, mine, strict=True)])
        blocking = self._kind[at] == BLOCK
        for going in (senders & blocking, ~blocking):
            if going.any():
                self._let_go.append(at[going])
                released: Integers = held[going]
                return released
        self._cut_short += 1
        self._settle(mine[np.argmin(self._last[mine])][None])
        return np.zeros(0, np.int64)

    def _sends(self, one: int, number: int) -> bool:
        stream = self._job.streams[self._stream[number]]
        return stream.message and int(stream.members[0]) == self._lockstep[one].columns[0]

    def _result(self) -> Replayed:
        let_go = np.sort(np.concatenate([np.zeros(0, np.int64), *self._let_go]))
        found = []
        for number, (together, course) in enumerate(zip(self._lockstep, self._courses, strict=True)):
            begin, stop = self._offsets[number], self._offsets[number + 1]
            free = let_go[slice(*np.searchsorted(let_go, [begin, stop]))] - begin
            arrived = self._arrived[begin:stop, None] if course is None else course.arrived
            ended = self._now[number, None] if course is None else course.now
            found.append((together, Times(arrived, ended, free)))
        begin, end, last = map(np.ascontiguousarray, (self._begin, self._end, self._last))
        return replayed(begin, end, last, found, self._cut_short)


def _joined(parts: Sequence[npt.NDArray[Any]], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *parts])
