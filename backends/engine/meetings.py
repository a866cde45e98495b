"""The collectives that wait for ranks: which ranks have come, which have not, and which never will."""

from __future__ import annotations

from typing import TypeAlias

from simcoll.backends.engine.tickets import Ticket
from simcoll.core.record import Group

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
