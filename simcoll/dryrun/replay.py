"""The programs that ranks ran alone, replayed together: where each of them would stand.

A collective ends when all its members that ran have come to it, a message when both ends are posted, the making of a
group when all its members that ran make it. Only what waits for one of these stands. Of ranks that did not run, and of
ranks of which nothing is known after their end (``unknown_after``), it is taken that they come.

What each rank of a dry run did, as operations in order: come to a call, wait for one, make a group.

A rank alone waits for nobody, so that its record shows every wait where the program has it. A future that was handed
on is waited for somewhere that no record shows: at the end, at the latest. Calls of the program's own threads stand in
strands of their own, for one that waits holds up no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, HANDED_ON, Trace
from simcoll.dryrun.p2p_matching import End, LoneMessages
from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.pricing.job import Matched
from simcoll.verifier.agreement.columns import columns_of
from simcoll.verifier.findings.failures import number as number_in
from simcoll.verifier.halts.group_creation import Creation, creations_of

COME, BLOCK, WAIT, MAKE = 0, 1, 2, 3
"""What an operation does: come to a call and go on, come and wait, wait for an earlier one, make a group."""

_END = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Strand:
    """Operations of one thread: what each does, with which row of the trace (of `MAKE`: which creation), and when."""

    kinds: Sequence[int]
    subjects: Sequence[int]
    times: Sequence[int]
    thread: int = 0

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class LoneProgram:
    """One rank's strands, the main thread's first, and the groups that it made."""

    trace: Trace
    strands: Sequence[Strand]
    creations: Sequence[Creation]


def lone_program(trace: Trace) -> LoneProgram:
    """Read the operations off a rank's record; calls that were refused never ran."""
    slots = trace.slots
    ran = np.flatnonzero(slots["state"] != State.REJECTED)
    flags = slots["flags"][ran]
    awaited, handed_on = flags & AWAITED != 0, flags & HANDED_ON != 0
    made, ended = (slots[name][ran].astype(np.int64) for name in ("scheduled_ns", "finished_ns"))
    blocks = (flags & ASYNCHRONOUS == 0) & (slots["p2p_sequence"][ran] == 0) & awaited & ~handed_on
    told = ~blocks & awaited & (ended > 0)
    last = ~blocks & ~awaited & handed_on
    creations = creations_of(trace.rank, trace.events)
    kinds = [np.where(blocks, BLOCK, COME), np.full(told.sum(), WAIT), np.full(last.sum(), WAIT)]
    kinds.append(np.full(len(creations), MAKE))
    subjects = [ran, ran[told], ran[last], np.arange(len(creations))]
    times = [made, ended[told], np.full(last.sum(), _END), np.array([one.time_ns for one in creations], np.int64)]
    # A call that was made in the very instant in which a wait ended comes after it, but no wait before its own call.
    after = [
        np.ones(len(ran)),
        np.where(ended[told] > made[told], 0, 2),
        np.full(last.sum(), 2),
        np.ones(len(creations)),
    ]
    order = np.lexsort((np.concatenate(after), np.concatenate(times)))
    columns = [np.concatenate(column).astype(np.int64)[order] for column in (kinds, subjects, times)]
    return LoneProgram(trace, _strands(trace, *columns), creations)


def _strands(
    trace: Trace, kinds: npt.NDArray[np.int64], subjects: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
) -> list[Strand]:
    switches = [(event.time_ns, number_in(event, "number") or 0) for event in trace.events if event.kind == THREAD]
    if not switches:
        return [_strand(kinds, subjects, times, 0)]
    made = np.where(kinds == MAKE, times, trace.slots["scheduled_ns"][np.where(kinds == MAKE, 0, subjects)])
    since = np.array([time for time, _ in switches])
    threads = np.array([0, *(thread for _, thread in switches)])[np.searchsorted(since, made, side="right")]
    return [
        _strand(kinds[threads == thread], subjects[threads == thread], times[threads == thread], thread)
        for thread in sorted({0, *threads.tolist()})
    ]


def _strand(kinds: npt.NDArray[Any], subjects: npt.NDArray[Any], times: npt.NDArray[Any], thread: int) -> Strand:
    return Strand(kinds.tolist(), subjects.tolist(), times.tolist(), thread)


_Key: TypeAlias = tuple[int, int, tuple[int, ...]]
"""A group in the making: life and ordinal as in `Creation`, and its members as stated."""


_MESSAGE = -2
"""In place of the number of a collective: a send or receive. What no record places has -1."""


@dataclass(slots=True)
class StrandProgress:
    """One strand of a rank, and how far it has come: the number of its next operation."""

    rank: int
    strand: Strand
    creations: Sequence[Creation]
    at: int = 0

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self.at >= len(self.strand)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where everybody stands when nobody can go on. ``done`` says of each rank's rows which calls have ended.

    ``taken`` says of receives from any source whose message they took (a group rank), ``pairs`` of messages which end
    met which.
    """

    courses: Mapping[int, Sequence[StrandProgress]]
    done: Mapping[int, npt.NDArray[np.bool_]]
    taken: Mapping[End, int]
    pairs: Mapping[End, End]

    @property
    def stuck(self) -> list[int]:
        """The ranks that do not come to their ends."""
        return [rank for rank, courses in self.courses.items() if not all(course.ended for course in courses)]


def replay_alone(traces: Sequence[Trace], world_size: int, unknown_after: Collection[int] = ()) -> Standing:
    """Replay the ranks' programs until nobody can go on."""
    return _Replay(traces, world_size, unknown_after).run()


@dataclass(slots=True)
class _Gathering:
    """A group in the making: how many of its members still have to make it, and who waits for them."""

    left: int
    waiting: list[StrandProgress] = field(default_factory=list)


class _Replay:
    def __init__(self, traces: Sequence[Trace], world_size: int, unknown_after: Collection[int]) -> None:
        self._traces = {trace.rank: trace for trace in traces}
        self._world_size, self._unknown_after = world_size, set(unknown_after)
        self._forgotten: set[int] = set()
        self._take_collectives(traces)
        self._messages = LoneMessages(self._traces)
        self._message_done: set[End] = set()
        self._message_waits: dict[End, list[StrandProgress]] = {}
        self._gatherings: dict[_Key, _Gathering] = {}
        programs: list[LoneProgram] = [lone_program(trace) for trace in traces]
        self._courses = {
            program.trace.rank: [
                StrandProgress(program.trace.rank, strand, program.creations) for strand in program.strands
            ]
            for program in programs
        }
        self._ready = deque(course for courses in self._courses.values() for course in courses)

    def _take_collectives(self, traces: Sequence[Trace]) -> None:
        """Number the collectives; ``_left`` counts the members that have not come to each."""
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
        self._waits: dict[int, list[StrandProgress]] = {}

    def run(self) -> Standing:
        """Let everybody go on as far as they can."""
        while True:
            while self._ready:
                self._go_on(self._ready.popleft())
            if not (guessed := self._messages.guess()):
                break
            self._end_messages(guessed)
        done = {rank: self._done(rank) for rank in self._traces}
        return Standing(self._courses, done, self._messages.taken, self._messages.pairs)

    def _go_on(self, course: StrandProgress) -> None:
        """A strand goes on until it waits for what has not ended, or to its end."""
        kinds, subjects, numbers = course.strand.kinds, course.strand.subjects, self._numbers[course.rank]
        count, at = len(kinds), course.at
        while at < count:
            kind, subject = kinds[at], subjects[at]
            course.at = at
            if kind == MAKE:
                if not self._make(course, course.creations[subject]):
                    return
            else:
                if kind != WAIT:
                    self._come(course.rank, subject, numbers[subject])
                if kind != COME and not self._has_ended(course, subject, numbers[subject]):
                    return
            at += 1
        course.at = count
        if course.rank in self._unknown_after and all(one.ended for one in self._courses[course.rank]):
            self._forget(course.rank)

    def _come(self, rank: int, row: int, number: int) -> None:
        if number < 0:
            if number == _MESSAGE:
                self._end_messages(self._messages.post((rank, row)))
            return
        self._left[number] -= 1
        if self._left[number] == 0:
            self._wake(self._waits.pop(number, ()))

    def _has_ended(self, course: StrandProgress, row: int, number: int) -> bool:
        """Whether what a strand waits for has ended; it is woken when it does."""
        if number >= 0:
            if self._left[number] > 0:
                self._waits.setdefault(number, []).append(course)
                return False
            return True
        end = course.rank, row
        if number != _MESSAGE or end in self._message_done:
            return True
        self._message_waits.setdefault(end, []).append(course)
        return False

    def _end_messages(self, ends: Iterable[End]) -> None:
        for end in ends:
            self._message_done.add(end)
            self._wake(self._message_waits.pop(end, ()))

    def _wake(self, courses: Iterable[StrandProgress]) -> None:
        """Those who waited go on behind the operation in which they did."""
        for course in courses:
            course.at += 1
            self._ready.append(course)

    def _make(self, course: StrandProgress, creation: Creation) -> bool:
        """Whether the group that a rank makes is there; who is no member waits for nobody."""
        if course.rank not in creation.members:
            return True
        key = creation.life, creation.ordinal, creation.members
        gathering = self._gatherings.get(key)
        if gathering is None:
            absent = [member for member in creation.members if member >= self._world_size]
            known = [member for member in creation.members if member in self._traces and member not in self._forgotten]
            gathering = self._gatherings[key] = _Gathering(len(known) + len(absent))
        if self._one_less(gathering):
            return True
        gathering.waiting.append(course)
        return False

    def _one_less(self, gathering: _Gathering) -> bool:
        """One of those who are waited for needs to be no more; whether that was the last."""
        gathering.left -= 1
        if gathering.left > 0:
            return False
        self._wake(gathering.waiting)
        gathering.waiting = []
        return True

    def _forget(self, rank: int) -> None:
        """Nothing is known of a rank that has ended so: whoever waits for it goes on."""
        self._forgotten.add(rank)
        for number in self._beyond(rank):
            self._left[number] -= 1
            if self._left[number] == 0:
                self._wake(self._waits.pop(number, ()))
        self._end_messages(self._messages.forget(rank))
        made = {(one.life, one.ordinal) for one in self._courses[rank][0].creations}
        for (life, ordinal, members), gathering in self._gatherings.items():
            if rank in members and (life, ordinal) not in made:
                self._one_less(gathering)

    def _beyond(self, rank: int) -> list[int]:
        """The collectives of a rank's groups that come after its last one there."""
        if not len(self._stream):
            return []
        numbers = np.array(self._numbers[rank], np.int64)
        last = np.zeros(len(self._members), np.int64)
        np.maximum.at(last, self._stream[numbers[numbers >= 0]], self._sequence[numbers[numbers >= 0]])
        member = np.array([rank in members for members in self._members], np.bool_)
        found: list[int] = np.flatnonzero(member[self._stream] & (self._sequence > last[self._stream])).tolist()
        return found

    def _done(self, rank: int) -> npt.NDArray[np.bool_]:
        """Which of a rank's calls have ended; what no record places counts as ended."""
        numbers = np.array(self._numbers[rank], np.int64)
        left = np.array([*self._left, 0], np.int64)
        done: npt.NDArray[np.bool_] = left[np.where(numbers >= 0, numbers, len(left) - 1)] <= 0
        for row in np.flatnonzero(self._traces[rank].slots["p2p_sequence"] > 0).tolist():
            done[row] = (rank, row) in self._message_done
        return done
