"""The clocks of simulated ranks: they advance by the cost of collectives on a topology, not by this machine's time.

A collective begins when its last rank has come and the group's earlier collectives have ended, and ends for all ranks
at once. A message leaves when its receive is posted, or at once if it is buffered. Calls of different groups do not
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
"""Seconds that a call takes on its rank, so that later events have later times."""


class VirtualTime:
    """A clock for each rank, in seconds from 0. Without a topology, calls take no time beyond a tick."""

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
        """The latest time of all ranks."""
        return max(self._now)

    def spend(self, rank: int, seconds: float) -> None:
        """Advance a rank that computes."""
        self._now[rank] += seconds

    def call(self, rank: int) -> float:
        """Advance a rank that makes a call, and return its time."""
        self._now[rank] += _TICK
        return self._now[rank]

    def reach(self, rank: int, seconds: float) -> None:
        """Advance a rank to a time that it has waited for."""
        self._now[rank] = max(self._now[rank], seconds)

    def run(self, met: Sequence[Ticket]) -> None:
        """Set the times of a collective, which runs as soon as it can."""
        group = met[0].group
        began = max(max(ticket.posted for ticket in met), self._busy.get(group, 0.0))
        ended = began + self._seconds(met, group.ranks)
        self._busy[group] = ended
        for ticket in met:
            ticket.began, ticket.ended = began, ended

    def carry(self, send: Ticket, receive: Ticket) -> None:
        """Set the times of a message; a buffered one has left before."""
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
    """Virtual time as in records, in which 0 means not yet."""
    return 1_000_000_000 + round(seconds * 1e9)
