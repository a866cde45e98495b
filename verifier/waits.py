"""Who waits for whom in a job that came to a halt, and who of them can never go on.

A rank that waits in a collective needs every member that has not come to it (AND); in a receive from any source one
sender is enough (OR). A rank with several waits has several threads: it goes on when one of them does. Whoever waits
for nobody is free, and so is everybody whose needs are met by those who are; the others are stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.record import Group, Record, State
from simcoll.verifier.failures import Nature
from simcoll.verifier.incidents import Job
from simcoll.verifier.matching import Unmatched
from simcoll.verifier.trace import AWAITED, HANDED_ON, Life, Stall, Trace, lives, record_at

_SEARCHED = 64
"""Ranks of one knot from which a shortest cycle is looked for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A call in which a rank (global) waits, and the ranks that it needs; ``any`` says that one of them is enough."""

    rank: int
    group: Group
    record: Record
    needs: frozenset[int]
    any: bool = False

    def met_by(self, ranks: set[int]) -> bool:
        """Whether these ranks are all that it needs."""
        return not self.needs.isdisjoint(ranks) if self.any else self.needs <= ranks


@dataclass(frozen=True, slots=True)
class Waits:
    """Every wait of a job by rank, and the ranks that can not go on whatever the free ones do.

    ``waiting`` are the ranks that wait at all, those included that nobody in particular keeps.
    """

    by_rank: Mapping[int, tuple[Wait, ...]]
    stuck: frozenset[int]
    waiting: frozenset[int]

    def all(self) -> list[Wait]:
        """Every wait, by rank."""
        return [wait for rank in sorted(self.by_rank) for wait in self.by_rank[rank]]

    def cycle(self) -> list[Wait]:
        """The shortest cycle that was found, each wait needing the rank of the next; empty where there is none."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        for wait in self.all():
            if wait.rank in self.stuck:
                graph.add_edges_from((wait.rank, rank, {"wait": wait}) for rank in wait.needs & self.stuck)
        knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
        cycles = [_shortest_cycle(graph.subgraph(knot)) for knot in knots]
        ranks = min(cycles, key=lambda cycle: (len(cycle), cycle), default=[])
        return [graph.edges[rank, ranks[(i + 1) % len(ranks)]]["wait"] for i, rank in enumerate(ranks)]


def waits_of(job: Job, stall: Stall | None, unmatched: Sequence[Unmatched] = ()) -> Waits:
    """What every rank that has not ended waits in; ``unmatched`` are the sends and receives without another end."""
    alone = {(one.rank, one.group, one.record.p2p_sequence): one for one in unmatched}
    reached = {rank: _reached(trace) for rank, trace in job.traces.items()}
    rows = {rank: _waiting_rows(job, trace, stall) for rank, trace in job.traces.items()}
    by_rank = {}
    for rank, trace in job.traces.items():
        if waits := tuple(wait for row in rows[rank] if (wait := _wait(trace, row, reached, alone))):
            by_rank[rank] = waits
    members = {rank for waits in by_rank.values() for wait in waits for rank in wait.needs}
    gone = set(job.ended) | {rank for rank in job.failures if rank not in by_rank}
    stuck = _stuck(by_rank, (set(job.traces) | members) - gone)
    return Waits(by_rank, frozenset(stuck), frozenset(rank for rank, mine in rows.items() if mine))


def _waiting_rows(job: Job, trace: Trace, stall: Stall | None) -> list[int]:
    """Rows of the calls that a rank sits in, or failed in for want of others."""
    failure = job.failures.get(trace.rank)
    if trace.rank in job.ended or (failure is not None and failure.nature is Nature.OWN):
        return []
    if stall is not None and trace.rank in stall.busy:
        return []
    slots = trace.slots
    unfinished = (slots["state"] == State.SCHEDULED) | (slots["state"] == State.STARTED)
    rows = np.flatnonzero(unfinished & ((slots["flags"] & AWAITED) != 0))
    if not len(rows) and stall is not None and trace.rank in stall.blocked:
        # It waits inside torch for something that nobody was seen to wait for: for a future, as DDP does.
        rows = np.flatnonzero(unfinished & ((slots["flags"] & HANDED_ON) != 0))[:1]
    if not len(rows) and failure is not None:
        rows = np.flatnonzero(slots["state"] == State.FAILED)[-1:]
    return [int(row) for row in rows]


def _reached(trace: Trace) -> dict[Life, int]:
    """The last collective of each group that the rank has come to."""
    slots = trace.slots
    collective = slots["p2p_sequence"] == 0
    reached = {}
    for index, life in enumerate(lives(trace)):
        mine: npt.NDArray[np.uint32] = slots["sequence"][collective & (slots["group"] == index)]
        reached[life] = max(int(mine.max(initial=0)), trace.dropped.get(index, 0))
    return reached


def _wait(
    trace: Trace,
    row: int,
    reached: Mapping[int, Mapping[Life, int]],
    alone: Mapping[tuple[int, Group, int], Unmatched],
) -> Wait | None:
    """A wait for others; None where all of them have come, so that nobody in particular is waited for."""
    record = record_at(trace, row)
    if record is None:
        return None
    if record.p2p_sequence:
        group = trace.groups[int(trace.slots[row]["group"])]
        message = alone.get((trace.rank, group, record.p2p_sequence))
        return None if message is None else _message(message)
    index = int(trace.slots[row]["group"])
    group, life = trace.groups[index], lives(trace)[index]
    needs = [
        rank for rank in group.ranks if rank != trace.rank and reached.get(rank, {}).get(life, 0) < record.sequence
    ]
    return Wait(trace.rank, group, record, frozenset(needs)) if needs else None


def _message(one: Unmatched) -> Wait:
    peers = frozenset(one.group.ranks) - {one.rank} if one.peer is None else frozenset({one.peer})
    return Wait(one.rank, one.group, one.record, peers, any=one.peer is None)


def _stuck(by_rank: Mapping[int, Iterable[Wait]], alive: set[int]) -> set[int]:
    """The waiting ranks that no free rank can set free: the least fixed point."""
    free = alive - set(by_rank)
    left = set(by_rank)
    while freed := {rank for rank in left if any(wait.met_by(free) for wait in by_rank[rank])}:
        free |= freed
        left -= freed
    return left


def _shortest_cycle(graph: nx.DiGraph[int]) -> list[int]:
    best: list[int] = []
    for rank in sorted(graph)[:_SEARCHED]:
        for after in sorted(graph.successors(rank))[:_SEARCHED]:
            path = nx.shortest_path(graph, after, rank)
            if not best or len(path) < len(best):
                best = [rank, *path[:-1]]
            if len(best) == 2:
                return best
    return best
