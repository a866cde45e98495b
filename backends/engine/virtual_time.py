"""The clocks of simulated ranks: what a topology makes collectives cost, and nothing that this machine does.

A collective begins when its last rank has come and the group's collectives before it have ended, and ends for all ranks
at once. A message leaves when its receive is there, or at once where it is buffered. Calls of different groups do not
slow each other down here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx

from simcoll.backends.engine.tickets import Ticket
from simcoll.core.record import Group
from simcoll.errors import ConfigurationError
from simcoll.spec.call import bytes_of

_TICK = 1e-6
"""Seconds that a rank takes to make a call: what comes later has a later time."""


class VirtualTime:
    """One clock a rank, in seconds from 0. Without a topology no call takes time beyond the making of it."""

    def __init__(self, size: int, topology: nx.DiGraph[Any] | None = None) -> None:
        self._now = [0.0] * size
        self._busy: dict[Group, float] = {}
        self._topology = topology
        if topology is not None:
            _check(topology, size)

    def now(self, rank: int) -> float:
        """The time of a rank (global)."""
        return self._now[rank]

    @property
    def latest(self) -> float:
        """The time of the rank that is furthest."""
        return max(self._now)

    def spend(self, rank: int, seconds: float) -> None:
        """A rank computes."""
        self._now[rank] += seconds

    def call(self, rank: int) -> float:
        """A rank makes a call; gives the moment."""
        self._now[rank] += _TICK
        return self._now[rank]

    def reach(self, rank: int, seconds: float) -> None:
        """A rank has waited for something that ended then."""
        self._now[rank] = max(self._now[rank], seconds)

    def run(self, met: Sequence[Ticket]) -> None:
        """A collective runs, as soon as it can."""
        group = met[0].group
        began = max(max(ticket.posted for ticket in met), self._busy.get(group, 0.0))
        ended = began + self._seconds(met, group.ranks)
        self._busy[group] = ended
        for ticket in met:
            ticket.began, ticket.ended = began, ended

    def carry(self, send: Ticket, receive: Ticket) -> None:
        """A message goes over; one that was buffered had left before."""
        took = self._seconds([send, receive], (send.global_rank, receive.global_rank))
        if send.done:
            receive.began, receive.ended = receive.posted, max(receive.posted, send.began + took)
            return
        began = max(send.posted, receive.posted)
        for ticket in (send, receive):
            ticket.began, ticket.ended = began, began + took

    def _seconds(self, met: Sequence[Ticket], ranks: tuple[int, ...]) -> float:
        if self._topology is None or len(set(ranks)) < 2:
            return 0.0
        from simcoll.estimator.estimate import estimate

        size = max(bytes_of(buffers) or 0 for ticket in met for buffers in (ticket.call.inputs, ticket.call.outputs))
        return estimate(met[0].call.op, size, self._topology, ranks=ranks).seconds


def _check(topology: nx.DiGraph[Any], size: int) -> None:
    from simcoll.topology.graph import ranks

    if len(ranks(topology)) < size:
        raise ConfigurationError(f"{size} ranks, and the topology has {len(ranks(topology))}: give it one for each")


def nanoseconds(seconds: float) -> int:
    """Virtual time as records state it: they take 0 for a moment that has not come."""
    return 1_000_000_000 + round(seconds * 1e9)
