"""A recorded job as columns: its collectives and messages, each once, and every rank's program of calls and waits.

The verifier's own matching says which calls belong together (`simcoll.verifier.agreement.columns`,
`simcoll.verifier.agreement.p2p_matching`). `simcoll.pricing.rank_program` decides what a record leaves open: when an
asynchronous call was waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, State
from simcoll.core.steps import Steps
from simcoll.core.trace import Trace, once_alike, slots_key
from simcoll.pricing.device_trace import DevicePrograms
from simcoll.pricing.rank_program import Program, Programs, steps_of
from simcoll.spec.call import Call, bytes_of
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.agreement.matched_calls import MatchedCalls
from simcoll.verifier.agreement.p2p_matching import ChannelRecords

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]

_SPREAD = 4
"""So many times as many positions as records may a group's sequence numbers span for a table of them all."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Calls that run one after the other: those of a group, or its messages from one rank to another.

    ``ranks`` are the global ranks that take part, of messages the sender first. ``members`` are the columns (see
    `RecordedJob`) of those that left records.
    """

    group: Group
    ranks: tuple[int, ...]
    message: bool
    members: Places


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """Every collective and message: its stream, its number there, which of ``ops``, bytes as nccl-tests counts them.

    ``came`` says how many ranks' records show it.
    """

    stream: Places
    sequence: Integers
    op: Places
    bytes: Integers
    came: Places
    ops: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.stream)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedJob:
    """A job to be replayed. ``ranks`` names the global rank of each column; each has a `Program`.

    ``steps`` are those of each column, None where its calls do not repeat. ``left_out`` counts messages without their
    other end, ``untyped`` calls whose bytes cannot be known.
    """

    ranks: tuple[int, ...]
    world_size: int
    streams: tuple[Stream, ...]
    collectives: Collectives
    programs: tuple[Program, ...]
    steps: tuple[Steps | None, ...]
    left_out: int = 0
    untyped: int = 0

    @property
    def counted(self) -> bool:
        """True if a dry run counted what the ranks compute."""
        return any(program.work is not None for program in self.programs)

    @property
    def calls(self) -> int:
        """Calls of all ranks."""
        return int(self.collectives.came.sum())


def recorded_job(traces: Sequence[Trace], known: MatchedCalls | None = None) -> RecordedJob:
    """Match what all ranks recorded, and work out each rank's program; refused calls never ran and are left out.

    ``known`` are the matched calls of these traces, if the caller has them.
    """
    found = match_traces(traces, known)
    programs, periods = _programs(traces, found.instances)
    ranks = tuple(trace.rank for trace in traces)
    world = max([*(trace.world_size for trace in traces), *(rank + 1 for rank in ranks)], default=0)
    left, untyped = found.left_out(), found.untyped()
    return RecordedJob(ranks, world, tuple(found.streams), found.collectives, programs, periods, left, untyped)


def _programs(
    traces: Sequence[Trace], instances: Sequence[Places]
) -> tuple[tuple[Program, ...], tuple[Steps | None, ...]]:
    """As a dry run wrote them down, or else as the times and the calls show them."""
    written = DevicePrograms()
    found = [written.program(trace, own) for trace, own in zip(traces, instances, strict=True)]
    told = all(one is not None and one[1] is not None for one in found)
    seen = [None] * len(found) if told else steps_of(traces, instances)
    shown = Programs()
    pairs = [
        (shown.of(trace, own, steps), steps) if one is None else (one[0], one[1] or steps)
        for trace, own, steps, one in zip(traces, instances, seen, found, strict=True)
    ]
    return tuple(program for program, _ in pairs), tuple(steps for _, steps in pairs)


def match_traces(traces: Sequence[Trace], known: MatchedCalls | None = None) -> Matched:
    """Find which calls of all ranks belong together."""
    calls, found = MatchedCalls.of(traces, known), Matched(traces)
    for columns in calls.columns:
        found.take_group(columns)
    for lane in calls.messages.lanes:
        found.take_lane(lane)
    return found


class Matched:
    """Collectives matched so far; ``instances`` gives each row of each trace the number of its collective, or -1."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = traces
        self._column = {id(trace): column for column, trace in enumerate(traces)}
        # Readers give ranks that make the same call the same object.
        calls = {id(call): call for trace in traces for call in trace.signatures}
        known = {key: _size(call) for key, call in calls.items()}
        self._sizes = [np.array([known[id(call)] for call in trace.signatures], np.int64) for trace in traces]
        self._ops: dict[str, int] = {}
        self._names = [
            np.array([self._ops.setdefault(call.op, len(self._ops)) for call in trace.signatures], np.int32)
            for trace in traces
        ]
        self.instances: list[Places] = [np.full(len(trace.slots), -1, np.int32) for trace in traces]
        self._ran = once_alike(traces, lambda trace: trace.slots["state"] != State.REJECTED, slots_key)
        self.streams: list[Stream] = []
        self._pieces: list[tuple[Places, Integers, Places, Integers, Places]] = []
        self._count = 0

    def take_group(self, columns: GroupColumns) -> None:
        """The collectives of one life of a group, by position."""
        parts = [(self._column[id(part.trace)], part) for part in columns.parts]
        members = np.array(sorted({column for column, _ in parts}), np.int32)
        stream = Stream(columns.group, tuple(columns.group.ranks), False, members)
        self._take(stream, _positions([part.sequences for _, part in parts]), parts)

    def take_lane(self, lane: ChannelRecords) -> None:
        """The messages of one lane: the n-th send meets the n-th receive."""
        count = lane.paired
        if not count:
            return
        op, size = np.zeros(count, np.int32), np.zeros(count, np.int64)
        ends = [(self._column[id(end.trace)], end) for end in (lane.sends, lane.receives)]
        for place, (column, end) in enumerate(ends):
            self.instances[column][end.rows[:count]] = np.arange(self._count, self._count + count, dtype=np.int32)
            # Often all of them are one call.
            same = end.used()[0] if len(end.used()) == 1 else None
            signatures = self._traces[column].slots["signature"][end.rows[:count]] if same is None else same
            if place == 0:
                op[:] = self._names[column][signatures]
            np.maximum(size, self._sizes[column][signatures], out=size)
        members = np.array([column for column, _ in ends], np.int32)
        stream = Stream(lane.group, (lane.sender, lane.receiver), True, members)
        self._add(stream, np.arange(1, count + 1), op, size, np.full(count, len(ends), np.int32))

    def _take(self, stream: Stream, positions: Integers, parts: Sequence[tuple[int, Part]]) -> None:
        op, size = np.full(len(positions), -1, np.int32), np.zeros(len(positions), np.int64)
        came = np.zeros(len(positions), np.int32)
        # Of parts that are alike the first says all but who came.
        alike: dict[object, list[tuple[int, Part]]] = {}
        for column, part in parts:
            key = slots_key(part.trace), id(part.trace.signatures), *part.slots_alike
            alike.setdefault(key, []).append((column, part))
        for same in alike.values():
            column, part = same[0]
            rows, sequences, ran = part.rows, part.sequences, self._ran[column][part.rows]
            every = bool(ran.all())
            rows, sequences = (rows, sequences) if every else (rows[ran], sequences[ran])
            place = _place(positions, sequences)
            signatures = part.trace.slots["signature"][rows]
            op[place] = np.where(op[place] < 0, self._names[column][signatures], op[place])
            size[place] = np.maximum(size[place], self._sizes[column][signatures])
            if bool((np.diff(place) > 0).all()):
                came[place] += len(same)
            else:
                np.add.at(came, place, len(same))
            numbers = (place + self._count).astype(np.int32)
            for other, one in same:
                self.instances[other][one.rows if every else one.rows[ran]] = numbers
        # A position at which every call was refused stays, and costs nothing: no rank comes to it.
        self._add(stream, positions.astype(np.int64), np.maximum(op, 0), np.maximum(size, 0), came)

    def _add(self, stream: Stream, positions: Integers, op: Places, size: Integers, came: Places) -> None:
        number = np.full(len(positions), len(self.streams), np.int32)
        self.streams.append(stream)
        self._pieces.append((number, positions, op, size, came))
        self._count += len(positions)

    @property
    def collectives(self) -> Collectives:
        """All that was matched, in columns."""
        empty = (np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))
        pieces = [(*empty, np.zeros(0, np.int32)), *self._pieces]
        stream, sequence, op, size, came = (np.concatenate(column) for column in zip(*pieces, strict=True))
        # A send and its receive are one row of the table each; the message is priced as its sending.
        ops = tuple("send" if _is_message(name) else name for name in self._ops)
        return Collectives(stream, sequence, op, size, came, ops)

    def size(self, column: int, row: int) -> int:
        """Bytes of one rank's call; 0 where they are not known."""
        signature = int(self._traces[column].slots["signature"][row])
        return max(int(self._sizes[column][signature]), 0) if signature < len(self._sizes[column]) else 0

    def left_out(self) -> int:
        """Messages whose other end is not known."""
        messages = once_alike(self._traces, lambda trace: trace.slots["p2p_sequence"] > 0, slots_key)
        return sum(
            int((sent & (own < 0) & ran).sum())
            for sent, own, ran in zip(messages, self.instances, self._ran, strict=True)
        )

    def untyped(self) -> int:
        """Calls that state a dtype whose width is not known."""
        return sum(
            int((sizes[trace.slots["signature"][own >= 0]] < 0).sum())
            for trace, own, sizes in zip(self._traces, self.instances, self._sizes, strict=True)
            if (sizes < 0).any()
        )


def _is_message(op: str) -> bool:
    return op in COLLECTIVES and COLLECTIVES[op].kind is Kind.POINT_TO_POINT


def _size(call: Call) -> int:
    """The larger of a call's two sides; -1 where a dtype's width is not known."""
    sides = bytes_of(call.inputs), bytes_of(call.outputs)
    return -1 if None in sides else min(max(sides[0] or 0, sides[1] or 0), 1 << 60)


def _place(positions: Integers, sequences: npt.NDArray[np.uint32]) -> Integers:
    if len(sequences) == len(positions) and np.array_equal(sequences, positions):
        return np.arange(len(positions))
    return np.searchsorted(positions, sequences).astype(np.int64)


def _positions(sequences: Sequence[npt.NDArray[np.uint32]]) -> Integers:
    """All positions that any of the ranks has, ascending."""
    first = sequences[0]
    if all(len(one) == len(first) and np.array_equal(one, first) for one in sequences[1:]):
        return np.unique(first).astype(np.int64)
    low, high = min(int(one[0]) for one in sequences), max(int(one[-1]) for one in sequences)
    if high - low > _SPREAD * sum(map(len, sequences)):
        return np.unique(np.concatenate(sequences)).astype(np.int64)
    there = np.zeros(high - low + 1, np.bool_)
    for one in sequences:
        there[one.astype(np.int64) - low] = True
    return (np.flatnonzero(there) + low).astype(np.int64)
