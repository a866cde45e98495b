"""Who waits for whom in a job that came to a halt, and who of them can never go on.

A rank that waits in a collective needs every member that has not come to it (AND); in a receive from any source one
sender is enough (OR). A rank with several waits has several threads: it goes on when one of them does. Whoever waits
for nobody is free, and so is everybody whose needs are met by those who are; the others are stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.record import Group, Record, State
from simcoll.verifier.describe import group_text
from simcoll.verifier.failures import Nature
from simcoll.verifier.incidents import Job
from simcoll.verifier.lanes import Unmatched
from simcoll.verifier.trace import AWAITED, HANDED_ON, Life, Stall, Trace, lives, reached, record_at

_Need: TypeAlias = tuple[frozenset[int], bool]
"""The ranks that a wait needs, and whether one of them is enough."""

_SEARCHED = 64
"""Calls of one knot from which a shortest cycle is looked for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A call in which a rank (global) waits, and the ranks that it needs; ``any`` says that one of them is enough.

    ``life`` counts how often the group had been made before.
    """

    rank: int
    group: Group
    record: Record
    needs: frozenset[int]
    any: bool = False
    life: int = 0

    @property
    def call(self) -> object:
        """What is the same for all who wait in one collective; a message is waited for by one rank alone."""
        if self.record.p2p_sequence:
            return self.rank, self.group, self.record.p2p_sequence
        return self.group, self.life, self.record.sequence

    @property
    def where(self) -> str:
        """The call by its place: ``all_reduce #7 of group 0``."""
        return call_at(self.group, self.record)


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
        # One node a call, not one a rank: all who wait in a collective wait for the same ones.
        numbers: dict[object, int] = {}
        calls: dict[int, dict[int, Wait]] = {}
        sits_in: dict[int, set[int]] = {}
        for wait in self.all():
            if wait.rank in self.stuck:
                number = numbers.setdefault(wait.call, len(numbers))
                calls.setdefault(number, {})[wait.rank] = wait
                sits_in.setdefault(wait.rank, set()).add(number)
        graph: nx.DiGraph[int] = nx.DiGraph()
        for number, members in calls.items():
            needs = next(iter(members.values())).needs & self.stuck
            graph.add_edges_from((number, after) for after in set[int]().union(*(sits_in[rank] for rank in needs)))
        knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
        cycles = [_shortest_cycle(graph.subgraph(knot)) for knot in knots]
        return _along([calls[number] for number in min(cycles, key=lambda cycle: (len(cycle), cycle), default=[])])


def waits_of(job: Job, stall: Stall | None, unmatched: Sequence[Unmatched] = ()) -> Waits:
    """What every rank that has not ended waits in; ``unmatched`` are the sends and receives without another end."""
    alone = {(one.rank, one.group, one.record.p2p_sequence): one for one in unmatched}
    absent = _Absent({rank: reached(trace) for rank, trace in job.traces.items()})
    rows = {rank: _waiting_rows(job, trace, stall) for rank, trace in job.traces.items()}
    by_rank = {}
    for rank, trace in job.traces.items():
        if waits := tuple(wait for row in rows[rank] if (wait := _wait(trace, row, absent, alone))):
            by_rank[rank] = waits
    members = set[int]().union(*{wait.needs for waits in by_rank.values() for wait in waits})
    gone = set(job.ended) | {rank for rank in job.failures if rank not in by_rank}
    stuck = _stuck(by_rank, (set(job.traces) | members) - gone)
    return Waits(by_rank, frozenset(stuck), frozenset(rank for rank, mine in rows.items() if mine))


def in_time(waits: Iterable[Wait]) -> list[Wait]:
    """Waits in the order in which they began."""
    return sorted(waits, key=lambda wait: (wait.record.scheduled_ns, wait.rank))


def call_at(group: Group, record: Record) -> str:
    """A call by its place: ``all_reduce #7 of group 0``."""
    return f"{record.call.op} #{record.p2p_sequence or record.sequence} of {group_text(group)}"


def _waiting_rows(job: Job, trace: Trace, stall: Stall | None) -> list[int]:
    """Rows of the calls that a rank sits in, or failed in for want of others."""
    failure = job.failures.get(trace.rank)
    if trace.rank in job.ended or (failure is not None and failure.nature is Nature.OWN):
        return []
    if stall is not None and trace.rank in stall.busy:
        return []
    slots = trace.slots
    unfinished = _unfinished(trace)
    rows = np.flatnonzero(unfinished & ((slots["flags"] & AWAITED) != 0))
    if not len(rows) and stall is not None and trace.rank in stall.blocked:
        # It waits inside torch for something that nobody was seen to wait for: for a future, as DDP does.
        rows = np.flatnonzero(unfinished & ((slots["flags"] & HANDED_ON) != 0))[:1]
    if not len(rows) and failure is not None:
        rows = np.flatnonzero(slots["state"] == State.FAILED)[-1:]
    return [int(row) for row in rows]


def _unfinished(trace: Trace) -> npt.NDArray[np.bool_]:
    states = trace.slots["state"]
    mask: npt.NDArray[np.bool_] = (states == State.SCHEDULED) | (states == State.STARTED)
    # A dump in which a call is known to have failed says nothing of what the rank did about it.
    return mask | (states == State.FAILED) if "state" in trace.unknown else mask


def awaited(trace: Trace) -> tuple[Group, Record]:
    """The first call in which a rank that waits does so, and its group."""
    mask = _unfinished(trace)
    rows = np.flatnonzero(mask & ((trace.slots["flags"] & AWAITED) != 0))
    row = int(rows[0]) if len(rows) else int(np.flatnonzero(mask)[0])
    record = record_at(trace, row)
    assert record is not None
    return trace.groups[int(trace.slots["group"][row])], record


@dataclass(frozen=True, slots=True)
class _Absent:
    """The members that have not come to a collective, worked out once for all who wait there."""

    reached: Mapping[int, Mapping[Life, int]]
    known: dict[tuple[Life, int], frozenset[int]] = field(default_factory=dict)

    def of(self, life: Life, sequence: int) -> frozenset[int]:
        if (life, sequence) not in self.known:
            late = [rank for rank in life[1] if self.reached.get(rank, {}).get(life, 0) < sequence]
            self.known[life, sequence] = frozenset(late)
        return self.known[life, sequence]


def _wait(trace: Trace, row: int, absent: _Absent, alone: Mapping[tuple[int, Group, int], Unmatched]) -> Wait | None:
    """A wait for others; None where all of them have come, so that nobody in particular is waited for."""
    record = record_at(trace, row)
    if record is None:
        return None
    index = int(trace.slots[row]["group"])
    group = trace.groups[index]
    if record.p2p_sequence:
        message = alone.get((trace.rank, group, record.p2p_sequence))
        return None if message is None else _message(message)
    life = lives(trace)[index]
    needs = absent.of(life, record.sequence)
    return Wait(trace.rank, group, record, needs, life=life[2]) if needs else None


def _message(one: Unmatched) -> Wait:
    peers = frozenset(one.group.ranks) - {one.rank} if one.peer is None else frozenset({one.peer})
    return Wait(one.rank, one.group, one.record, peers, any=one.peer is None)


def _stuck(by_rank: Mapping[int, Iterable[Wait]], alive: set[int]) -> set[int]:
    """The waiting ranks that no free rank can set free: the least fixed point.

    Each rank that comes free counts once for every wait that needs it: the time is that of the needs, not of the chain.
    """
    left = set(by_rank)
    waiting: dict[_Need, list[int]] = {}
    keeps: dict[int, list[_Need]] = {}
    for rank, waits in by_rank.items():
        for wait in waits:
            waiting.setdefault((wait.needs, wait.any), []).append(rank)
    lacking = {need: 1 if need[1] else len(need[0]) for need in waiting}
    for need in waiting:
        for rank in need[0]:
            keeps.setdefault(rank, []).append(need)
    free = list(alive - left)
    for need in waiting:
        if lacking[need] == 0:
            free += left.intersection(waiting[need])
            left.difference_update(waiting[need])
    while free:
        for need in keeps.get(free.pop(), ()):
            lacking[need] -= 1
            if lacking[need] == 0:
                freed = left.intersection(waiting[need])
                left -= freed
                free += freed
    return left


def _along(calls: Sequence[Mapping[int, Wait]]) -> list[Wait]:
    """One rank's wait for each call of a cycle: one for which the call before waits."""
    chosen: list[Wait] = []
    needs = next(iter(calls[-1].values())).needs if calls else frozenset[int]()
    for call in calls:
        chosen.append(call[min(call.keys() & needs)])
        needs = chosen[-1].needs
    return chosen


def _shortest_cycle(graph: nx.DiGraph[int]) -> list[int]:
    best: list[int] = []
    for call in sorted(graph)[:_SEARCHED]:
        for after in sorted(graph.successors(call))[:_SEARCHED]:
            path = nx.shortest_path(graph, after, call)
            if not best or len(path) < len(best):
                best = [call, *path[:-1]]
            if len(best) == 2:
                return best
    return best
