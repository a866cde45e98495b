"""One simulated rank: writes its calls down as a real rank does, and gives them to the engine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from simcoll.backends.flights import Flight, Flights
from simcoll.backends.lines import calling_line
from simcoll.backends.memory_box import MemoryBox
from simcoll.backends.parking import StuckError
from simcoll.backends.tickets import RefusedCallError, RefusedPeerError, Ticket
from simcoll.backends.world import World
from simcoll.call import ANY_SOURCE, Call
from simcoll.errors import CollectiveMismatchError
from simcoll.parameters import Claim, to_json
from simcoll.record import Group, Source, State, source_document
from simcoll.semantics import Array, Outputs
from simcoll.spec import Kind, spec_of
from simcoll.verifier.trace import AWAITED


class Entry:
    """One call of the rank as it is written down while it runs."""

    __slots__ = ("_box", "group", "line", "number", "sequence", "ticket")

    def __init__(self, box: MemoryBox, group: Group, line: Source, sequence: int, number: int) -> None:
        self._box = box
        self.group = group
        self.line = line
        self.sequence = sequence
        self.number = number
        self.ticket: Ticket

    @property
    def call(self) -> Call:
        """What the rank asked for."""
        return self.ticket.call

    @property
    def pair(self) -> bool:
        """Whether it is a send or a receive."""
        return spec_of(self.call).kind is Kind.POINT_TO_POINT

    def mark(self, flag: int) -> None:
        """Set a bit of the record's flags."""
        self._box.mark(self.number, flag)

    def event(self, kind: str, **data: object) -> None:
        """Write down something that happened to the call."""
        document = source_document(self.line)
        self._box.event(kind, group=self.group.name, sequence=self.sequence, op=self.call.op, source=document, **data)

    def ended(self, ticket: Ticket) -> None:
        """Write down how it ended, and whose message a receive from any source has taken.

        What a rank gives up because others have failed, or are stuck, has not ended.
        """
        began, over = nanoseconds(ticket.began), nanoseconds(ticket.ended)
        if ticket.met and ticket.call.peer == ANY_SOURCE:
            known = replace(self.call, peer=ticket.source)
            self._box.resign(self.number, self._box.signature(known))
        if ticket.error is None:
            self._box.ran(self.number, began, over, State.COMPLETED)
        elif isinstance(ticket.error, CollectiveMismatchError):
            self._box.ran(self.number, began, over, State.FAILED if self.pair else State.REJECTED)
        elif isinstance(ticket.error, (RefusedCallError, RefusedPeerError)):
            self._box.ran(self.number, began, over, State.REJECTED)
            self._refused(ticket.error)

    def _refused(self, error: Exception) -> None:
        self._box.event(
            "rejected",
            group=self.group.name,
            sequence=self.sequence,
            function=self.call.op,
            type=type(error).__name__,
            message=str(error),
            source=source_document(self.line),
        )


class Rank:
    """What a simulated rank is beside its program; ``rank`` is global."""

    def __init__(self, rank: int, world: World) -> None:
        self.rank = rank
        self.world = world
        self.box = MemoryBox(rank, world.size, "detail", self._now)
        self.flights = Flights()
        self.hangs_at: Source | None = None
        """The line at which it computes for ever."""
        self.asks_at: Source | None = None
        """The line at which it asked for the end of a call that had not ended."""
        self._ordinal = 0
        self._models: set[int] = set()

    def _now(self) -> int:
        return nanoseconds(self.world.clock.now(self.rank))

    def event(self, kind: str, **data: object) -> None:
        """Write down something that is no call."""
        self.world.clock.call(self.rank)
        self.box.event(kind, **data)

    def new_group(
        self, ranks: Sequence[int] | None, description: str, line: Source, *, ordered: bool = False
    ) -> Group | None:
        """Make a group, and wait for its members; None where this rank is none. ``ordered``: in the order given."""
        members = _members(range(self.world.size) if ranks is None else ranks, self.world.size, self.rank)
        members = members if ordered else sorted(members)
        self._ordinal += 1
        place = {"life": 1, "ordinal": self._ordinal}
        self.event("creating", **place, ranks=members, source=source_document(line))
        group = Group(str(self._ordinal), description, tuple(members))
        if self.rank in members:
            self._meet(group, line)
        self.event("created", **place)
        return group if self.rank in members else None

    def _meet(self, group: Group, line: Source) -> None:
        """Members find each other under the group's number, and no record tells of it."""
        if len(group.ranks) > 1:
            making = Group(f"making {group.name}", "", group.ranks)
            ticket = Ticket(making, group.ranks.index(self.rank), Call("barrier", "barrier"), _Arrays((), ()), line)
            self.world.post(ticket)
            self.world.wait(ticket)

    def state_parameters(self, group: Group, claim: Claim, line: Source) -> None:
        """Write down the model that is about to be trained on a group; a list that was written before is not again."""
        known = {} if claim.digest in self._models else {"parameters": to_json(claim.parameters)}
        self._models.add(claim.digest)
        document = source_document(line)
        digest = f"{claim.digest:016x}"
        self.event("parameters", group=group.name, digest=digest, count=claim.count, source=document, **known)

    def non_member(self, function: str, line: Source) -> None:
        """Write down a call on a group of others."""
        self.event("non_member", function=function, count=1, source=source_document(line))

    def refuse(self, function: str, error: Exception, line: Source) -> None:
        """Write down a call that was refused before it was one."""
        document = source_document(line)
        said = {"function": function, "type": type(error).__name__, "message": str(error)}
        self.event("rejected", group=None, sequence=None, source=document, **said)

    def hang(self, line: Source) -> None:
        """Never come to another call; ends when nobody else can go on."""
        self.hangs_at = line
        with self.world.threads.lock:
            place = self.world.threads.place(self.rank)
        self.world.threads.wait(place)


def _members(ranks: Sequence[int], size: int, rank: int) -> list[int]:
    if not isinstance(ranks, Iterable):
        raise TypeError(f"rank {rank}: new_group of {ranks!r:.40}: give a list of ranks")
    members = [int(member) for member in ranks]
    if not members or len(set(members)) < len(members) or not all(0 <= member < size for member in members):
        raise ValueError(f"rank {rank}: new_group of {members}: give distinct ranks of the world of {size}, from 0")
    return members


class Place:
    """A rank's membership of a group: counts the calls that it makes there."""

    def __init__(self, rank: Rank, group: Group) -> None:
        self.rank = rank
        self.group = group
        self.group_rank = group.ranks.index(rank.rank)
        self._index = rank.box.group(group)
        self._sequence = 0
        self._p2p_sequence = 0

    def post(
        self,
        call: Call,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        line: Source,
        *,
        asynchronous: bool = False,
        claim: Claim | None = None,
    ) -> Request:
        """Make a call; the request that comes back is to be waited for."""
        rank, spec = self.rank, spec_of(call)
        # Before it is written down: it is no call of this rank.
        rank.world.threads.check_own(rank.rank)
        rank.world.clock.call(rank.rank)
        pair = spec.kind is Kind.POINT_TO_POINT
        rank.world.check_failure(rank.rank)
        self._sequence += not pair
        self._p2p_sequence += pair
        number = rank.box.schedule(
            self._index,
            self._sequence,
            rank.box.signature(call),
            rank.box.source(line),
            asynchronous=asynchronous,
            p2p_sequence=self._p2p_sequence if pair else 0,
            started=True,
            awaited=not asynchronous,
        )
        entry = Entry(rank.box, self.group, line, self._sequence, number)
        reads = list(inputs) if spec.sends_inputs(call, self.group_rank) else []
        writes = list(outputs) if spec.brings_result(call, self.group_rank) else []
        return Request(self, entry, call, _Arrays(inputs, outputs), reads, writes, asynchronous, claim)


class Request:
    """A call that was made: what c10d calls a Work, and MPI a request."""

    def __init__(
        self,
        place: Place,
        entry: Entry,
        call: Call,
        data: _Arrays,
        reads: Sequence[Array],
        writes: Sequence[Array],
        asynchronous: bool,
        claim: Claim | None,
    ) -> None:
        self._rank = place.rank
        self._entry = entry
        self._flight: Flight | None = None
        flights, world = place.rank.flights, place.rank.world
        ticket = Ticket(place.group, place.group_rank, call, data, entry.line, claim=claim, deferred=asynchronous)
        self._ticket = entry.ticket = ticket
        if asynchronous:
            self._flight = flights.open(entry, reads, writes)
            # Nobody proves a message before it leaves.
            data.flight = None if entry.pair else self._flight
            data.notice = partial(flights.changed, self._flight, known=True)
        else:
            flights.meet(entry, reads, writes)
        ticket.callbacks.append(entry.ended)
        world.post(ticket)

    def wait(self) -> int:
        """Wait for the call's end; gives the sender's group rank for a receive, else the caller's.

        Raises :class:`~simcoll.errors.CollectiveMismatchError` where the ranks disagree,
        :class:`~simcoll.backends.tickets.RefusedCallError` for a call that makes no sense by itself,
        :class:`~simcoll.backends.parking.StuckError` where nobody is left to come, and
        :class:`~simcoll.backends.tickets.PeerFailedError` where another rank has failed.
        """
        self._observe()
        self._rank.world.wait(self._ticket)
        self._rank.flights.waits += 1
        return self._ticket.source

    def is_completed(self) -> bool:
        """Whether the call has ended, without waiting; a program that is told so need not wait."""
        if not self._ticket.done:
            self._rank.asks_at = calling_line()
        try:
            ended = self._rank.world.has_ended(self._ticket)
        except StuckError:
            # It asked for ever, which is to wait.
            self._entry.mark(AWAITED)
            raise
        if not ended:
            return False
        self._observe()
        self._rank.flights.waits += 1
        return True

    test = is_completed

    def _observe(self) -> None:
        self._entry.mark(AWAITED)
        if self._flight is not None:
            self._rank.flights.awaited(self._flight, calling_line())
            self._flight = None

    def __del__(self) -> None:
        flight = getattr(self, "_flight", None)
        if flight is not None and not sys.is_finalizing():
            self._rank.flights.dropped(flight)
            if self._entry.pair:
                self._rank.world.let_go(self._ticket)


class _Arrays:
    """The arrays of a call, and the flight that watches them."""

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self.flight: Flight | None = None
        self.notice = _nothing

    def read(self) -> Sequence[Array]:
        """What the inputs hold now."""
        if self.flight is not None and self.flight.runs():
            self.notice()
        return self._inputs

    def write(self, results: Outputs) -> None:
        """Write the results into the caller's arrays; what the standard leaves undefined stays as it was."""
        for result, output in zip(results, self._outputs, strict=True):
            if result is not None:
                np.copyto(output, result)
        if self.flight is not None:
            self.flight.ran()


def _nothing() -> None:
    return None


def nanoseconds(seconds: float) -> int:
    """Virtual time as records state it: they take 0 for a moment that has not come."""
    return 1_000_000_000 + round(seconds * 1e9)
