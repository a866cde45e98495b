"""A simulated rank in a group: its calls, and the requests that it waits for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from simcoll.backends.engine.parking import StuckError
from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.simulated.async_checks import ArrayData, SimulatedEntry, SimulatedFlight
from simcoll.backends.simulated.rank import Rank, calling_line
from simcoll.blackbox.box import Slot
from simcoll.core.record import Group, Source, State
from simcoll.core.trace import ASYNCHRONOUS, AWAITED
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.ddp_model import Claim
from simcoll.spec.semantics import Array
from simcoll.spec.table import Kind


class Membership:
    """A rank's membership of a group; counts its calls there."""

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
        """Make a call and return its request, which is to be waited for."""
        rank, spec = self.rank, spec_of(call)
        # Before it is recorded: it is no call of this rank.
        rank.world.threads.check_own(rank.rank)
        rank.world.clock.call(rank.rank)
        pair = spec.kind is Kind.POINT_TO_POINT
        rank.world.check_failure(rank.rank)
        self._sequence += not pair
        self._p2p_sequence += pair
        slot = Slot(
            self._index,
            self._sequence,
            rank.box.signature(call),
            rank.box.source(line),
            self._p2p_sequence if pair else 0,
            State.STARTED,
            ASYNCHRONOUS if asynchronous else AWAITED,
        )
        number = rank.box.schedule(slot)
        entry = SimulatedEntry(rank.box, self.group, line, self._sequence, number)
        reads = list(inputs) if spec.sends_inputs(call, self.group_rank) else []
        writes = list(outputs) if spec.brings_result(call, self.group_rank) else []
        return Request(self, entry, call, ArrayData(inputs, outputs), reads, writes, asynchronous, claim)


class Request:
    """The handle of a call: a Work in c10d, a request in MPI."""

    def __init__(
        self,
        member: Membership,
        entry: SimulatedEntry,
        call: Call,
        data: ArrayData,
        reads: Sequence[Array],
        writes: Sequence[Array],
        asynchronous: bool,
        claim: Claim | None,
    ) -> None:
        self._rank = member.rank
        self._entry = entry
        self._flight: SimulatedFlight | None = None
        flights, world = member.rank.flights, member.rank.world
        ticket = Ticket(member.group, member.group_rank, call, data, entry.line, claim=claim, deferred=asynchronous)
        self._ticket = entry.ticket = ticket
        if asynchronous:
            self._flight = flights.open(entry, reads, writes)
            # A message is not proved before it leaves.
            data.flight = None if ticket.is_message else self._flight
            data.notice = partial(flights.changed, self._flight, known=True)
        else:
            flights.meet(entry, reads, writes)
        ticket.callbacks.append(entry.ended)
        world.post(ticket)

    def wait(self) -> int:
        """Wait for the call's end; returns the sender's group rank for a receive, else the caller's.

        Raises :class:`~simcoll.errors.CollectiveMismatchError` if the ranks disagree,
        :class:`~simcoll.backends.engine.tickets.RefusedCallError` for a call that is invalid by itself,
        :class:`~simcoll.backends.engine.parking.StuckError` if no missing rank can come any more, and
        :class:`~simcoll.backends.engine.tickets.PeerFailedError` if another rank has failed.
        """
        self._observe()
        self._rank.world.wait(self._ticket)
        self._rank.flights.waits += 1
        return self._ticket.source

    def is_completed(self) -> bool:
        """Whether the call has ended, without waiting; if so, the program need not wait."""
        if not self._ticket.done:
            self._rank.polls_at = calling_line()
        try:
            ended = self._rank.world.has_ended(self._ticket)
        except StuckError:
            # Polling forever counts as waiting.
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
            if self._ticket.is_message:
                self._rank.world.drop_message(self._ticket)
