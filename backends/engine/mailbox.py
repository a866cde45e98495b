"""Matches sends and receives.

Messages of one sender and one tag stay in order. A receive from any source may take the first message of any sender;
the schedule decides which.
"""

from __future__ import annotations

from collections.abc import Hashable

from simcoll.backends.engine.schedules import SENDS, Choices, Decision
from simcoll.backends.engine.tickets import Ticket
from simcoll.errors import ConfigurationError
from simcoll.spec.call import ANY_SOURCE
from simcoll.spec.semantics import Array, Outputs


class Mailbox:
    """The unmatched sends and receives of all groups."""

    def __init__(self, sends: str, choices: Choices) -> None:
        if sends not in SENDS:
            raise ConfigurationError(f"sends is {sends!r:.40}, expected one of {', '.join(SENDS)}")
        self._kind = sends
        self._choices = choices
        self._sent: dict[Hashable, list[Ticket]] = {}
        self._wanted: dict[Hashable, list[Ticket]] = {}

    def post(self, ticket: Ticket, life: int) -> tuple[Ticket, Ticket] | None:
        """Post one end; returns the send and the receive if the other end is there, else None."""
        sends = ticket.call.op == "send"
        receiver = (ticket.call.peer or 0) if sends else ticket.rank
        place = (ticket.group.name, ticket.group.ranks, life, receiver)
        if sends:
            return self._send(ticket, place)
        return self._receive(ticket, place)

    def buffers(self, ticket: Ticket) -> bool:
        """Whether a send without a receive completes at once; its data is copied then."""
        buffered = self._kind == "buffered" or (
            self._kind == "either" and self._choices.choose(Decision.BUFFER, 2) == 1
        )
        if buffered:
            ticket.data = _CopiedData([array.copy() for array in ticket.data.read()])
        return buffered

    def withdraw(self, ticket: Ticket) -> None:
        """Remove an end that no rank waits for any more."""
        for box in (self._sent, self._wanted):
            for place, tickets in list(box.items()):
                if ticket in tickets:
                    tickets.remove(ticket)
                    if not tickets:
                        del box[place]

    def _send(self, send: Ticket, place: Hashable) -> tuple[Ticket, Ticket] | None:
        for receive in self._wanted.get(place, ()):
            if _fits(send, receive):
                _take(self._wanted, place, receive)
                return send, receive
        self._sent.setdefault(place, []).append(send)
        return None

    def _receive(self, receive: Ticket, place: Hashable) -> tuple[Ticket, Ticket] | None:
        first: dict[int, Ticket] = {}
        for send in self._sent.get(place, ()):
            if _fits(send, receive):
                first.setdefault(send.rank, send)
        if not first:
            self._wanted.setdefault(place, []).append(receive)
            return None
        senders = list(first.values())
        option = self._choices.choose(Decision.MESSAGE, len(senders)) if len(senders) > 1 else 0
        _take(self._sent, place, senders[option])
        return senders[option], receive


class _CopiedData:
    """The copied data of a buffered send."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def read(self) -> list[Array]:
        """The copied arrays."""
        return self._arrays

    def write(self, results: Outputs) -> None:
        """Do nothing: a send has no outputs."""


def _fits(send: Ticket, receive: Ticket) -> bool:
    return receive.call.peer in (ANY_SOURCE, send.rank) and (send.call.tag or 0) == (receive.call.tag or 0)


def _take(box: dict[Hashable, list[Ticket]], place: Hashable, ticket: Ticket) -> None:
    box[place].remove(ticket)
    if not box[place]:
        del box[place]
