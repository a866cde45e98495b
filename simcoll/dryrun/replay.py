"""Replays the programs of ranks that ran alone together, to find the operation at which each of them would block.

A rank's program is a list of operations for each of its threads: launch a call, wait for one, create a group. A rank
that runs alone waits for no other, so that its record shows every wait at its place in the program. No record
shows where a future that was handed on is waited for: at the end, at the latest.

In the replay a collective completes when all its members that ran have launched it, a message when both ends are
posted, the creation of a group when all its members that ran create it; nothing else blocks. Ranks that did not run,
and ranks that might have gone on after their end (``unknown_after``), are assumed to take part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.record import number as number_in
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, HANDED_ON, Trace
from simcoll.dryrun.p2p_matching import End, P2pMatcher
from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.pricing.job import Matched
from simcoll.verifier.agreement.columns import columns_of
from simcoll.verifier.halts.job import Creation, creations_of

LAUNCH, BLOCK, WAIT, CREATE = 0, 1, 2, 3
"""Operations: launch a call and go on, launch it and wait, wait for an earlier call, create a group."""

_END = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class ThreadProgram:
    """A thread's operations: kinds, subjects (rows of the trace; of `CREATE`, the number of the creation), times."""

    kinds: Sequence[int]
    subjects: Sequence[int]
    times: Sequence[int]
    thread: int = 0

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The programs of a rank's threads, the main thread's first, and the groups that it creates."""

    trace: Trace
    threads: Sequence[ThreadProgram]
    creations: Sequence[Creation]


def rank_program(trace: Trace) -> RankProgram:
    """Read a rank's operations from its record; rejected calls never ran."""
    slots = trace.slots
    ran = np.flatnonzero(slots["state"] != State.REJECTED)
    flags = slots["flags"][ran]
    awaited, handed_on = flags & AWAITED != 0, flags & HANDED_ON != 0
    made, ended = (slots[name][ran].astype(np.int64) for name in ("scheduled_ns", "finished_ns"))
    blocks = (flags & ASYNCHRONOUS == 0) & (slots["p2p_sequence"][ran] == 0) & awaited & ~handed_on
    waited = ~blocks & awaited & (ended > 0)
    last = ~blocks & ~awaited & handed_on
    creations = creations_of(trace.rank, trace.events)
    kinds = [np.where(blocks, BLOCK, LAUNCH), np.full(waited.sum(), WAIT), np.full(last.sum(), WAIT)]
    kinds.append(np.full(len(creations), CREATE))
    subjects = [ran, ran[waited], ran[last], np.arange(len(creations))]
    times = [made, ended[waited], np.full(last.sum(), _END), np.array([one.time_ns for one in creations], np.int64)]
    # A call that was made at the very time at which a wait ended comes after it, but no wait comes before its call.
    after = [
        np.ones(len(ran)),
        np.where(ended[waited] > made[waited], 0, 2),
        np.full(last.sum(), 2),
        np.ones(len(creations)),
    ]
    order = np.lexsort((np.concatenate(after), np.concatenate(times)))
    columns = [np.concatenate(column).astype(np.int64)[order] for column in (kinds, subjects, times)]
    return RankProgram(trace, _thread_programs(trace, *columns), creations)


def _thread_programs(
    trace: Trace, kinds: npt.NDArray[np.int64], subjects: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
) -> list[ThreadProgram]:
    switches = [(event.time_ns, number_in(event, "number") or 0) for event in trace.events if event.kind == THREAD]
    if not switches:
        return [_thread_program(kinds, subjects, times, 0)]
    made = np.where(kinds == CREATE, times, trace.slots["scheduled_ns"][np.where(kinds == CREATE, 0, subjects)])
    since = np.array([time for time, _ in switches])
    threads = np.array([0, *(thread for _, thread in switches)])[np.searchsorted(since, made, side="right")]
    return [
        _thread_program(kinds[threads == thread], subjects[threads == thread], times[threads == thread], thread)
        for thread in sorted({0, *threads.tolist()})
    ]


def _thread_program(
    kinds: npt.NDArray[Any], subjects: npt.NDArray[Any], times: npt.NDArray[Any], thread: int
) -> ThreadProgram:
    return ThreadProgram(kinds.tolist(), subjects.tolist(), times.tolist(), thread)


_Key: TypeAlias = tuple[int, int, tuple[int, ...]]
"""A group creation: life and ordinal as in `Creation`, and the declared members."""


_MESSAGE = -2
"""In place of a collective's number, for a send or receive; -1 is for a call that no record places."""


@dataclass(slots=True)
class ThreadProgress:
    """One thread of a rank; ``at`` is the number of its next operation."""

    rank: int
    program: ThreadProgram
    creations: Sequence[Creation]
    at: int = 0

    @property
    def ended(self) -> bool:
        """True if it has reached its end."""
        return self.at >= len(self.program)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The progress of each thread until no thread can go on; ``done`` masks the calls of each rank that completed.

    ``taken`` has the source (a group rank) of receives from any source, ``pairs`` the other end of each message.
    """

    threads: Mapping[int, Sequence[ThreadProgress]]
    done: Mapping[int, npt.NDArray[np.bool_]]
    taken: Mapping[End, int]
    pairs: Mapping[End, End]

    @property
    def blocked(self) -> list[int]:
        """The ranks that do not reach their ends."""
        return [rank for rank, threads in self.threads.items() if not all(thread.ended for thread in threads)]


def replay_programs(traces: Sequence[Trace], world_size: int, unknown_after: Collection[int] = ()) -> ReplayResult:
    """Replay the ranks' programs until no thread can go on."""
    return _Replay(traces, world_size, unknown_after).run()


@dataclass(slots=True)
class _PendingGroup:
    """A group creation: the number of members that still have to join it, and the threads that wait for them."""

    left: int
    waiting: list[ThreadProgress] = field(default_factory=list)


class _Replay:
    def __init__(self, traces: Sequence[Trace], world_size: int, unknown_after: Collection[int]) -> None:
        self._traces = {trace.rank: trace for trace in traces}
        self._world_size, self._unknown_after = world_size, set(unknown_after)
        self._unknown: set[int] = set()
        self._number_collectives(traces)
        self._messages = P2pMatcher(self._traces)
        self._message_done: set[End] = set()
        self._message_waits: dict[End, list[ThreadProgress]] = {}
        self._pending_groups: dict[_Key, _PendingGroup] = {}
        programs: list[RankProgram] = [rank_program(trace) for trace in traces]
        self._threads = {
            rank.trace.rank: [ThreadProgress(rank.trace.rank, thread, rank.creations) for thread in rank.threads]
            for rank in programs
        }
        self._ready = deque(thread for threads in self._threads.values() for thread in threads)

    def _number_collectives(self, traces: Sequence[Trace]) -> None:
        """Number the collectives; ``_left`` counts the members that have not launched each."""
        found = Matched(traces)
        for columns in columns_of(traces):
            found.take_group(columns)
        self._numbers = {
            trace.rank: np.where(trace.slots["p2p_sequence"] > 0, _MESSAGE, own).tolist()
            for trace, own in zip(traces, found.instances, strict=True)
        }
        table = found.collectives
        needed = np.array([len(self._traces.keys() & set(one.group.ranks)) for one in found.streams], np.int64)
        left = needed[table.stream] if len(table) else np.zeros(0, np.int64)
        self._members = [set(one.group.ranks) for one in found.streams]
        self._stream, self._sequence = table.stream, table.sequence
        for number, one in enumerate(found.streams):
            for trace in traces:
                names = [index for index, group in enumerate(trace.groups) if group == one.group]
                dropped = max((trace.dropped.get(index, 0) for index in names), default=0)
                if dropped:
                    left[(table.stream == number) & (table.sequence <= dropped)] -= 1
        self._left: list[int] = left.tolist()
        self._waits: dict[int, list[ThreadProgress]] = {}

    def run(self) -> ReplayResult:
        """Run every thread as far as it can go."""
        while True:
            while self._ready:
                self._run_thread(self._ready.popleft())
            if not (guessed := self._messages.guess()):
                break
            self._end_messages(guessed)
        done = {rank: self._done(rank) for rank in self._traces}
        return ReplayResult(self._threads, done, self._messages.taken, self._messages.pairs)

    def _run_thread(self, thread: ThreadProgress) -> None:
        """Run a thread until it blocks or reaches its end."""
        kinds, subjects, numbers = thread.program.kinds, thread.program.subjects, self._numbers[thread.rank]
        count, at = len(kinds), thread.at
        while at < count:
            kind, subject = kinds[at], subjects[at]
            thread.at = at
            if kind == CREATE:
                if not self._create(thread, thread.creations[subject]):
                    return
            else:
                if kind != WAIT:
                    self._launch(thread.rank, subject, numbers[subject])
                if kind != LAUNCH and not self._has_ended(thread, subject, numbers[subject]):
                    return
            at += 1
        thread.at = count
        if thread.rank in self._unknown_after and all(one.ended for one in self._threads[thread.rank]):
            self._assume_present(thread.rank)

    def _launch(self, rank: int, row: int, number: int) -> None:
        if number < 0:
            if number == _MESSAGE:
                self._end_messages(self._messages.post((rank, row)))
            return
        self._left[number] -= 1
        if self._left[number] == 0:
            self._wake(self._waits.pop(number, ()))

    def _has_ended(self, thread: ThreadProgress, row: int, number: int) -> bool:
        """True if the call that a thread waits for has completed; otherwise the thread is woken when it does."""
        if number >= 0:
            if self._left[number] > 0:
                self._waits.setdefault(number, []).append(thread)
                return False
            return True
        end = thread.rank, row
        if number != _MESSAGE or end in self._message_done:
            return True
        self._message_waits.setdefault(end, []).append(thread)
        return False

    def _end_messages(self, ends: Iterable[End]) -> None:
        for end in ends:
            self._message_done.add(end)
            self._wake(self._message_waits.pop(end, ()))

    def _wake(self, threads: Iterable[ThreadProgress]) -> None:
        """Let blocked threads go on with the operation after the one that blocked them."""
        for thread in threads:
            thread.at += 1
            self._ready.append(thread)

    def _create(self, thread: ThreadProgress, creation: Creation) -> bool:
        """True if a rank's group creation completes; a rank that is no member does not wait."""
        if thread.rank not in creation.members:
            return True
        key = creation.life, creation.ordinal, creation.members
        pending = self._pending_groups.get(key)
        if pending is None:
            absent = [member for member in creation.members if member >= self._world_size]
            known = [member for member in creation.members if member in self._traces and member not in self._unknown]
            pending = self._pending_groups[key] = _PendingGroup(len(known) + len(absent))
        if self._expect_one_less(pending):
            return True
        pending.waiting.append(thread)
        return False

    def _expect_one_less(self, pending: _PendingGroup) -> bool:
        """Expect one member less; returns True if that was the last."""
        pending.left -= 1
        if pending.left > 0:
            return False
        self._wake(pending.waiting)
        pending.waiting = []
        return True

    def _assume_present(self, rank: int) -> None:
        """Assume that a rank that might have gone on takes part: everything that waits for it goes on."""
        self._unknown.add(rank)
        for number in self._collectives_after_last(rank):
            self._left[number] -= 1
            if self._left[number] == 0:
                self._wake(self._waits.pop(number, ()))
        self._end_messages(self._messages.forget(rank))
        made = {(one.life, one.ordinal) for one in self._threads[rank][0].creations}
        for (life, ordinal, members), pending in self._pending_groups.items():
            if rank in members and (life, ordinal) not in made:
                self._expect_one_less(pending)

    def _collectives_after_last(self, rank: int) -> list[int]:
        """The collectives of a rank's groups after the rank's last one in each."""
        if not len(self._stream):
            return []
        numbers = np.array(self._numbers[rank], np.int64)
        last = np.zeros(len(self._members), np.int64)
        np.maximum.at(last, self._stream[numbers[numbers >= 0]], self._sequence[numbers[numbers >= 0]])
        member = np.array([rank in members for members in self._members], np.bool_)
        found: list[int] = np.flatnonzero(member[self._stream] & (self._sequence > last[self._stream])).tolist()
        return found

    def _done(self, rank: int) -> npt.NDArray[np.bool_]:
        """Mask of a rank's calls that completed; a call that no record places counts as completed."""
        numbers = np.array(self._numbers[rank], np.int64)
        left = np.array([*self._left, 0], np.int64)
        done: npt.NDArray[np.bool_] = left[np.where(numbers >= 0, numbers, len(left) - 1)] <= 0
        for row in np.flatnonzero(self._traces[rank].slots["p2p_sequence"] > 0).tolist():
            done[row] = (rank, row) in self._message_done
        return done
