"""Matches sends and receives, and the ranks of a collective.

Messages of one sender and one tag stay in order. A receive from any source may take the first message of any sender;
the schedule decides which.

:class:`Meetings` knows of a collective that waits which ranks have come, which have not, and which never will.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from simcoll.backends.engine.schedules import SENDS, Choices, Decision
from simcoll.backends.engine.tickets import Ticket
from simcoll.core.record import Group
from simcoll.errors import ConfigurationError
from simcoll.spec.call import ANY_SOURCE
from simcoll.spec.semantics import Array, Outputs

_Member: TypeAlias = tuple[str, tuple[int, ...], int]
"""A group's name, its members, and a group rank."""

_Key: TypeAlias = tuple[str, tuple[int, ...], int, int]
"""A group's name, its members, how often they have destroyed it, and the sequence number of a collective."""


class Meetings:
    """Matches the collectives of all groups: the n-th collective of one rank is the n-th of every other one."""

    def __init__(self) -> None:
        self._lives: dict[_Member, int] = {}
        self._sequences: dict[_Member, int] = {}
        self._met: dict[_Key, dict[int, Ticket]] = {}
        self._where: dict[Ticket, _Key] = {}

    def join(self, ticket: Ticket) -> list[Ticket] | None:
        """Add a rank's next collective and set its sequence number; returns all calls if this is the last rank."""
        group, member = ticket.group, _member(ticket.group, ticket.rank)
        ticket.sequence = self._sequences[member] = self._sequences.get(member, 0) + 1
        key = (group.name, group.ranks, self._lives.get(member, 0), ticket.sequence)
        met = self._met.setdefault(key, {})
        met[ticket.rank], self._where[ticket] = ticket, key
        if len(met) < len(group.ranks):
            return None
        del self._met[key]
        for one in met.values():
            del self._where[one]
        return [met[rank] for rank in range(len(group.ranks))]

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a call: its rank does not count as present any more."""
        key = self._where.pop(ticket, None)
        if key is not None:
            del self._met[key][ticket.rank]
            if not self._met[key]:
                del self._met[key]

    def close(self, group: Group, rank: int) -> None:
        """Note that a group rank has destroyed its group: a new group with the same name counts from 1 again."""
        member = _member(group, rank)
        self._lives[member] = self._lives.get(member, 0) + 1
        self._sequences.pop(member, None)

    def life(self, group: Group, rank: int) -> int:
        """How often a group rank has destroyed its group."""
        return self._lives.get(_member(group, rank), 0)

    def incomplete(self) -> list[dict[int, Ticket]]:
        """The calls of the ranks that have come, by group rank, for each waiting collective."""
        return list(self._met.values())

    def absent(self, ticket: Ticket) -> list[int]:
        """The ranks (global) that are missing in the collective of a call."""
        met = self._of(ticket)
        return [rank for place, rank in enumerate(ticket.group.ranks) if place not in met]

    def destroyed(self, ticket: Ticket) -> list[int]:
        """The ranks (global) that a call waits for and that have destroyed their group since."""
        if not self._lives or ticket not in self._where:
            return []
        group, met, life = ticket.group, self._of(ticket), self._where[ticket][2]
        places = [place for place in range(len(group.ranks)) if place not in met]
        return [group.ranks[place] for place in places if self.life(group, place) > life]

    def _of(self, ticket: Ticket) -> dict[int, Ticket]:
        """The calls of the collective of a call; empty where it is no waiting collective."""
        key = self._where.get(ticket)
        return {} if key is None else self._met[key]


def _member(group: Group, rank: int) -> _Member:
    return group.name, group.ranks, rank


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
