"""Ranks in one process, on numpy arrays: collectives are what the spec says they compute, proved before they run.

Each rank's program runs on a thread of its own, one at a time (:mod:`simcoll.backends.turns`). A collective meets when
the last rank of its group comes; the calls are then judged by the same rules as those of a real job, and either every
rank gets its result or every rank raises. A send is buffered and never blocks; messages of one sender and tag are
received in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from simcoll.backends.base import Backend
from simcoll.backends.comm import Comm
from simcoll.backends.turns import Choose, StuckError, Turns, longest_waiting
from simcoll.call import ANY_SOURCE, Call
from simcoll.errors import CollectiveMismatchError
from simcoll.record import Group, Record, Source, State
from simcoll.semantics import Array, Outputs
from simcoll.spec import Kind, spec_of
from simcoll.verifier.compare import compare
from simcoll.verifier.finding import Finding, Severity
from simcoll.verifier.fingerprint import mismatch_text

T = TypeVar("T")

SIMULATED = Backend("simulated")
"""It does whatever the spec gives a meaning."""


class RefusedCallError(ValueError):
    """A call that contradicts itself, or that asks for a reduction that has no meaning."""


class RefusedPeerError(RuntimeError):
    """Another rank's call of this collective was refused, so that it can never complete."""


class MessageMismatchError(RuntimeError):
    """A message does not fit the buffer of the receive that takes it."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of a run. All ranks are global.

    ``records`` are each rank's calls in order, ``findings`` what the ranks disagreed about, ``results`` what the
    programs returned, ``exceptions`` what ended those that did not return.
    """

    group: Group
    records: Mapping[int, Sequence[Record]]
    findings: Sequence[Finding]
    results: Mapping[int, T]
    exceptions: Mapping[int, BaseException]


def run(world_size: int, program: Callable[[Comm], T], *, choose: Choose = longest_waiting) -> Outcome[T]:
    """Run ``program(comm)`` on every rank to its end; ``choose`` decides the interleaving.

    What a program raises is in the outcome and is not raised here. Raises ValueError for a world without ranks.
    """
    if world_size < 1:
        raise ValueError(f"a simulated world has at least 1 rank, got {world_size}")
    group = Group("0", "default_pg", tuple(range(world_size)))
    world = World(group, choose)
    results: dict[int, T] = {}
    exceptions: dict[int, BaseException] = {}

    def body(rank: int) -> None:
        try:
            results[rank] = program(Comm(rank, group, world.perform))
        except BaseException as error:  # whatever ends one rank, the others go on
            exceptions[rank] = error

    world.turns.run(body)
    return Outcome(group, world.records, world.findings, results, exceptions)


@dataclass(slots=True)
class _Arrival:
    """One rank at a collective: its call, its input arrays, its place in the rank's records, then how it ended."""

    call: Call
    inputs: Sequence[Array]
    record: int
    outputs: Outputs = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Message:
    source: int
    call: Call
    inputs: Sequence[Array]


class World:
    """The state that the ranks share; they take turns, so that nothing here needs a lock."""

    def __init__(self, group: Group, choose: Choose = longest_waiting) -> None:
        ranks = range(len(group.ranks))
        self.turns = Turns(len(group.ranks), choose)
        self.records: dict[int, list[Record]] = {rank: [] for rank in ranks}
        self.findings: list[Finding] = []
        self._group = group
        self._sequence = dict.fromkeys(ranks, 0)
        self._p2p_sequence = dict.fromkeys(ranks, 0)
        self._meetings: dict[int, dict[int, _Arrival]] = {}
        self._mail: dict[int, list[_Message]] = {rank: [] for rank in ranks}
        self._receiving: set[int] = set()

    def perform(self, rank: int, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], source: Source) -> int:
        """Carry out one rank's call and fill its ``outputs``; gives the sender's rank for a receive, else ``rank``.

        Raises :class:`~simcoll.errors.CollectiveMismatchError` where the ranks disagree, :class:`RefusedCallError` for
        a call that makes no sense by itself, :class:`~simcoll.backends.turns.StuckError` where nobody is left to come.
        """
        if spec_of(call).kind is Kind.POINT_TO_POINT:
            return self._point_to_point(rank, call, inputs, outputs, source)
        self._sequence[rank] += 1
        arrival = _Arrival(call, inputs, self._note(rank, call, source))
        self._meet(rank, self._sequence[rank], arrival)
        if arrival.error is not None:
            raise arrival.error
        _deliver(arrival.outputs, outputs)
        return rank

    def _meet(self, rank: int, sequence: int, arrival: _Arrival) -> None:
        """Wait for the other ranks; the last one settles the collective for all of them."""
        meeting = self._meetings.setdefault(sequence, {})
        meeting[rank] = arrival
        if len(meeting) < len(self._group.ranks):
            try:
                self.turns.park(rank)
            except StuckError as error:
                del meeting[rank]
                raise self._stuck(rank, sequence) from error
            return
        self._settle(self._meetings.pop(sequence))
        for other in meeting:
            if other != rank:
                self.turns.wake(other)

    def _settle(self, meeting: Mapping[int, _Arrival]) -> None:
        if not self._mismatched(meeting) and not self._refused(meeting):
            ordered = [meeting[rank] for rank in sorted(meeting)]
            spec = spec_of(ordered[0].call)
            results = spec.result([one.call for one in ordered], [one.inputs for one in ordered])
            for arrival, outputs in zip(ordered, results, strict=True):
                arrival.outputs = outputs
        for rank, arrival in meeting.items():
            self._mark(rank, arrival.record, State.COMPLETED if arrival.error is None else State.REJECTED)

    def _mismatched(self, meeting: Mapping[int, _Arrival]) -> bool:
        records = {rank: self.records[rank][arrival.record] for rank, arrival in meeting.items()}
        findings = compare(self._group, records)
        self.findings += findings
        if not any(finding.severity is Severity.ERROR for finding in findings):
            return False
        for rank, arrival in meeting.items():
            text = mismatch_text(self._group, records, rank, findings)
            arrival.error = CollectiveMismatchError(text, tuple(findings))
        return True

    def _refused(self, meeting: Mapping[int, _Arrival]) -> bool:
        size = len(self._group.ranks)
        reasons = {
            rank: reason
            for rank, arrival in meeting.items()
            if (reason := SIMULATED.refusal(arrival.call, rank, size)) is not None
        }
        for rank, arrival in meeting.items():
            if rank in reasons:
                arrival.error = RefusedCallError(f"rank {rank}: {arrival.call.op}: {reasons[rank]}")
            elif reasons:
                arrival.error = RefusedPeerError(f"rank {rank}: {arrival.call.op} was refused on ranks {list(reasons)}")
        return bool(reasons)

    def _stuck(self, rank: int, sequence: int) -> StuckError:
        missing = [other for other in self._sequence if self._sequence[other] < sequence]
        self._mark(rank, len(self.records[rank]) - 1, State.FAILED)
        call = self.records[rank][-1].call
        return StuckError(
            f"rank {rank} waits in {call.op} (collective {sequence}) for ranks {missing}, which never come"
        )

    def _point_to_point(
        self, rank: int, call: Call, inputs: Sequence[Array], outputs: Sequence[Array], source: Source
    ) -> int:
        self._p2p_sequence[rank] += 1
        record = self._note(rank, call, source)
        if reason := SIMULATED.refusal(call, rank, len(self._group.ranks)):
            self._mark(rank, record, State.REJECTED)
            raise RefusedCallError(f"rank {rank}: {call.op}: {reason}")
        try:
            sender = self._receive(rank, call, outputs) if outputs else self._send(rank, call, inputs)
        except Exception:
            self._mark(rank, record, State.FAILED)
            raise
        self._mark(rank, record, State.COMPLETED)
        return sender

    def _send(self, rank: int, call: Call, inputs: Sequence[Array]) -> int:
        receiver = rank if call.peer is None else call.peer
        self._mail[receiver].append(_Message(rank, call, [array.copy() for array in inputs]))
        if receiver in self._receiving:
            self._receiving.discard(receiver)
            self.turns.wake(receiver)
        return rank

    def _receive(self, rank: int, call: Call, outputs: Sequence[Array]) -> int:
        while (message := self._matching(rank, call)) is None:
            self._receiving.add(rank)
            try:
                self.turns.park(rank)
            except StuckError as error:
                self._receiving.discard(rank)
                sender = "any rank" if call.peer == ANY_SOURCE else f"rank {call.peer}"
                raise StuckError(f"rank {rank} waits for a message from {sender} with tag {call.tag}") from error
        self._mail[rank].remove(message)
        sent, expected = message.call.inputs[0], call.outputs[0]
        if (sent.elements, sent.dtype) != (expected.elements, expected.dtype):
            raise MessageMismatchError(
                f"rank {rank} expects {expected.elements} elements of {expected.dtype},"
                f" rank {message.source} sent {sent.elements} of {sent.dtype}"
            )
        results = spec_of(call).result([message.call, call], [message.inputs, []])
        _deliver(results[1], outputs)
        return message.source

    def _matching(self, rank: int, call: Call) -> _Message | None:
        for message in self._mail[rank]:
            if call.peer in (ANY_SOURCE, message.source) and (call.tag or 0) == (message.call.tag or 0):
                return message
        return None

    def _note(self, rank: int, call: Call, source: Source) -> int:
        """Write the call down; gives its place among the rank's records."""
        pair = spec_of(call).kind is Kind.POINT_TO_POINT
        record = Record(
            self._group.name,
            self._sequence[rank],
            call,
            source,
            State.STARTED,
            p2p_sequence=self._p2p_sequence[rank] if pair else 0,
        )
        self.records[rank].append(record)
        return len(self.records[rank]) - 1

    def _mark(self, rank: int, place: int, state: State) -> None:
        self.records[rank][place] = replace(self.records[rank][place], state=state)


def _deliver(results: Outputs, outputs: Sequence[Array]) -> None:
    """Write the results into the caller's arrays; what the standard leaves undefined stays as it was."""
    for result, output in zip(results, outputs, strict=True):
        if result is not None:
            np.copyto(output, result)
