"""The wait-for graph of a job that halted, and the ranks that can never proceed.

A rank that waits in a collective needs every member that has not come to it (AND); in a receive from any source one
sender is enough (OR). A rank with several waits has several threads: it goes on when one of them does. A rank that
waits for nobody is free, and so is every rank whose needs free ranks meet; the others are stuck.

Each call that a device runs (:mod:`simcoll.verifier.halts.device_queue`) waits by itself: for the hosts of ranks
that have not made it, and for the calls at which the devices of others are blocked before they come to it. The host of
such a rank goes on, unless it waits for its device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, Record, State
from simcoll.core.trace import AWAITED, HANDED_ON, Life, Stall, Trace, lives, reached_by, record_at
from simcoll.verifier.agreement.p2p_matching import Unmatched
from simcoll.verifier.findings.describe import group_text
from simcoll.verifier.halts.device_queue import DeviceCalls, Head, Stand, stands
from simcoll.verifier.halts.failures import Nature
from simcoll.verifier.halts.job import Job

if TYPE_CHECKING:
    import networkx as nx

_Actor: TypeAlias = "int | Head"
"""A rank's host, or a call at which its device stands."""

_Need: TypeAlias = tuple[frozenset[_Actor], bool]
"""The actors that a wait needs, and whether one of them is enough."""

_SEARCHED = 64
"""Calls of one knot from which a shortest cycle is looked for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A call in which a rank (global) waits, and the ranks that it needs; ``any`` says that one of them is enough.

    ``life`` counts how often the group had been made before. ``kept`` are those of the needed ranks that can never
    come, as far as the waits tell. ``behind`` are those that have made the call themselves, and whose devices stand
    before it; ``on_device`` says that it is the device of the rank that waits.
    """

    rank: int
    group: Group
    record: Record
    needs: frozenset[int]
    any: bool = False
    life: int = 0
    kept: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()
    on_device: bool = False

    @property
    def call(self) -> object:
        """A key that is equal for all ranks that wait in one collective; one rank alone waits for a message."""
        if self.record.p2p_sequence:
            return self.rank, self.group, self.record.p2p_sequence
        return self.group, self.life, self.record.sequence

    @property
    def place(self) -> str:
        """The call within its group: ``all_reduce #7``."""
        return f"{self.record.call.op} #{self.record.p2p_sequence or self.record.sequence}"

    @property
    def where(self) -> str:
        """The call by its place: ``all_reduce #7 of group 0``."""
        return call_at(self.group, self.record)


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Every wait of a job by rank, and the ranks that can not go on, whatever the free ones do.

    ``waiting`` are all ranks that wait, those included that no known rank keeps; ``unended`` those whose
    devices have calls that are not known to have ended.
    """

    by_rank: Mapping[int, tuple[Wait, ...]]
    stuck: frozenset[int]
    waiting: frozenset[int]
    unended: frozenset[int] = frozenset()

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
            if wait.kept:
                number = numbers.setdefault(wait.call, len(numbers))
                calls.setdefault(number, {})[wait.rank] = wait
                sits_in.setdefault(wait.rank, set()).add(number)
        if not calls:
            return []
        import networkx as nx  # it takes a third of the start of a command that reads records

        graph: nx.DiGraph[int] = nx.DiGraph()
        for number, members in calls.items():
            kept = next(iter(members.values())).kept
            # A rank that only ranks keep which have failed, and so wait for nobody, sits in no call of a cycle.
            into = set[int]().union(*(sits_in.get(rank, ()) for rank in kept))
            graph.add_edges_from((number, after) for after in into)
        knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
        cycles = [_shortest_cycle(graph.subgraph(knot)) for knot in knots]
        return _along([calls[number] for number in min(cycles, key=lambda cycle: (len(cycle), cycle), default=[])])


def waits_of(job: Job) -> WaitGraph:
    """The waits of every rank that has not ended, as far as its records and the job's stall show."""
    alone = {(one.rank, one.group, one.record.p2p_sequence): one for one in job.matching.unmatched}
    absent = _Absent(reached_by(job.traces))
    on_devices = DeviceCalls([*job.traces.values()])
    rows = {rank: _waiting_rows(job, trace, on_devices) for rank, trace in job.traces.items()}
    by_rank = {}
    for rank, trace in job.traces.items():
        if waits := tuple(wait for row in rows[rank] if (wait := _wait(trace, row, absent, alone))):
            by_rank[rank] = waits
    on_device = _standing(job, on_devices, absent.reached, alone)
    needs = _needs(by_rank, on_device, job.stall)
    # Thousands of ranks have one need: each is looked at once.
    distinct = {need for mine in needs.values() for need in mine}
    members = {actor for need in distinct for actor in need[0] if isinstance(actor, int)}
    gone = set(job.ended) | {rank for rank in fallen(job) if rank not in by_rank and rank not in on_device}
    stuck = _stuck(needs, (set(job.traces) | members) - gone)
    everything = {rank: tuple(_kept(by_rank, on_device, rank, stuck)) for rank in sorted({*by_rank, *on_device})}
    held = frozenset(wait.rank for waits in everything.values() for wait in waits if wait.kept)
    waiting = {rank for rank, mine in rows.items() if mine} | on_device.keys()
    left = {rank: trace for rank, trace in job.traces.items() if rank not in job.ended}
    unended = frozenset(rank for rank, trace in left.items() if len(on_devices.open_rows(trace)))
    return WaitGraph(everything, held | {one for one in stuck if isinstance(one, int)}, frozenset(waiting), unended)


def fallen(job: Job) -> set[int]:
    """The ranks that have failed, without those that torch's watchdog ended: others had waited for them before."""
    return {rank for rank, failure in job.failures.items() if failure.nature is not Nature.WATCHDOG}


def in_time(waits: Iterable[Wait]) -> list[Wait]:
    """Waits in the order in which they began."""
    return sorted(waits, key=lambda wait: (wait.record.scheduled_ns, wait.rank))


def call_at(group: Group, record: Record) -> str:
    """A call by its place: ``all_reduce #7 of group 0``."""
    return f"{record.call.op} #{record.p2p_sequence or record.sequence} of {group_text(group)}"


def _waiting_rows(job: Job, trace: Trace, on_devices: DeviceCalls) -> list[int]:
    """Rows of the calls that a rank sits in, or failed in for want of others."""
    stall = job.stall
    failure = job.failures.get(trace.rank)
    if trace.rank in job.ended or (failure is not None and failure.nature is Nature.OWN):
        return []
    if stall is not None and trace.rank in stall.busy:
        return []
    slots = trace.slots
    on_device = on_devices.queued(trace)
    unfinished = _unfinished(trace) & ~on_device
    rows = np.flatnonzero(unfinished & ((slots["flags"] & AWAITED) != 0))
    if not len(rows) and stall is not None and trace.rank in stall.blocked:
        # It waits inside torch for something that no thread was seen to wait for: for a future, as DDP does.
        rows = np.flatnonzero(unfinished & ((slots["flags"] & HANDED_ON) != 0))[:1]
    if not len(rows) and failure is not None:
        rows = np.flatnonzero((slots["state"] == State.FAILED) & ~on_device)[-1:]
    return [int(row) for row in rows]


def _unfinished(trace: Trace) -> npt.NDArray[np.bool_]:
    states = trace.slots["state"]
    mask: npt.NDArray[np.bool_] = (states == State.SCHEDULED) | (states == State.STARTED)
    # A dump in which a call is known to have failed does not show how the rank handled it.
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
    """The members that have not come to a collective, computed once for all ranks that wait there."""

    reached: Mapping[int, Mapping[Life, int]]
    known: dict[tuple[Life, int], frozenset[int]] = field(default_factory=dict)

    def of(self, life: Life, sequence: int) -> frozenset[int]:
        if (life, sequence) not in self.known:
            late = [rank for rank in life[1] if self.reached.get(rank, {}).get(life, 0) < sequence]
            self.known[life, sequence] = frozenset(late)
        return self.known[life, sequence]


def _wait(trace: Trace, row: int, absent: _Absent, alone: Mapping[tuple[int, Group, int], Unmatched]) -> Wait | None:
    """A wait for others; None where all of them have come, so that the rank waits for no known rank."""
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


def _standing(
    job: Job,
    calls: DeviceCalls,
    come: Mapping[int, Mapping[Life, int]],
    alone: Mapping[tuple[int, Group, int], Unmatched],
) -> dict[int, list[tuple[Stand, Wait]]]:
    """The calls at which devices are blocked, by rank, of ranks that have neither ended nor failed by themselves."""
    own = {rank for rank, failure in job.failures.items() if failure.nature is Nature.OWN}
    traces = {rank: trace for rank, trace in job.traces.items() if rank not in job.ended and rank not in own}
    found: dict[int, list[tuple[Stand, Wait]]] = {}
    if not any(calls.queued(trace).any() for trace in traces.values()):
        return found
    lonely = {_place(one): one for one in alone.values() if one.rank in traces}
    of_rank: dict[int, set[tuple[Group, int]]] = {}
    for rank, group, number in lonely:
        of_rank.setdefault(rank, set()).add((group, number))
    rows = {(rank, row) for rank, wanted in of_rank.items() for row in _messages(traces[rank], wanted)}
    for stand in stands(calls, job.traces, come, rows, job.failures.keys() - own):
        if stand.rank in traces and (wait := _device_wait(job.traces[stand.rank], stand, lonely)) is not None:
            found.setdefault(stand.rank, []).append((stand, wait))
    return found


def _place(one: Unmatched) -> tuple[int, Group, int]:
    return one.rank, one.group, one.record.p2p_sequence


def _messages(trace: Trace, wanted: Collection[tuple[Group, int]]) -> list[int]:
    """The rows of a rank's messages of these groups and numbers."""
    rows = np.flatnonzero(trace.slots["p2p_sequence"]).tolist()
    slots, groups = trace.slots, trace.groups
    return [row for row in rows if (groups[slots[row]["group"]], int(slots[row]["p2p_sequence"])) in wanted]


def _device_wait(trace: Trace, stand: Stand, lonely: Mapping[tuple[int, Group, int], Unmatched]) -> Wait | None:
    record = record_at(trace, stand.row)
    if record is None:
        return None
    index = int(trace.slots[stand.row]["group"])
    if record.p2p_sequence:
        one = lonely.get((trace.rank, trace.groups[index], record.p2p_sequence))
        return None if one is None else replace(_message(one), on_device=True)
    life = lives(trace)[index][2]
    behind = frozenset(stand.behind)
    return Wait(trace.rank, trace.groups[index], record, stand.needs, life=life, behind=behind, on_device=True)


def _needs(
    by_rank: Mapping[int, Iterable[Wait]], on_device: Mapping[int, Sequence[tuple[Stand, Wait]]], stall: Stall | None
) -> dict[_Actor, list[_Need]]:
    """The needs of each host and each device that waits."""
    needs: dict[_Actor, list[_Need]] = {
        rank: [(frozenset[_Actor](wait.needs), wait.any) for wait in waits] for rank, waits in by_rank.items()
    }
    for rank, mine in on_device.items():
        for stand, wait in mine:
            hosts = frozenset[_Actor](stand.unmade) if stand.needs else frozenset[_Actor](wait.needs)
            needs[rank, stand.row] = [(hosts.union(*stand.behind.values()), wait.any)]
        if rank not in needs and _waits_for_device(rank, stall):
            needs[rank] = [(frozenset((rank, stand.row) for stand, _ in mine), False)]
    return needs


def _waits_for_device(rank: int, stall: Stall | None) -> bool:
    """True if a host waits for its device; where nobody has looked at it, it is assumed to."""
    return stall is None or not stall.watched or rank in stall.blocked


def _kept(
    by_rank: Mapping[int, Iterable[Wait]],
    on_device: Mapping[int, Sequence[tuple[Stand, Wait]]],
    rank: int,
    stuck: Collection[_Actor],
) -> Iterable[Wait]:
    """A rank's waits, with the ranks that can never come to them."""
    for wait in by_rank.get(rank, ()):
        yield replace(wait, kept=frozenset(wait.needs.intersection(stuck)) if rank in stuck else frozenset())
    for stand, wait in on_device.get(rank, ()):
        kept = {one for one in wait.needs - wait.behind if one in stuck}
        kept |= {one for one, heads in stand.behind.items() if not heads.isdisjoint(stuck)}
        yield replace(wait, kept=frozenset(kept) if (rank, stand.row) in stuck else frozenset())


def _message(one: Unmatched) -> Wait:
    return Wait(one.rank, one.group, one.record, frozenset(one.peers), any=one.peer is None)


def _stuck(needs: Mapping[_Actor, Iterable[_Need]], alive: Iterable[_Actor]) -> set[_Actor]:
    """The waiting actors that no free one can set free: the least fixed point.

    Each that comes free counts once for every wait that needs it: the time is that of the needs, not of the chain.
    """
    left = set(needs)
    waiting: dict[_Need, list[_Actor]] = {}
    keeps: dict[_Actor, list[_Need]] = {}
    for actor, mine in needs.items():
        for need in mine:
            waiting.setdefault(need, []).append(actor)
    lacking = {need: 1 if need[1] else len(need[0]) for need in waiting}
    for need in waiting:
        for one in need[0]:
            keeps.setdefault(one, []).append(need)
    free = list(set(alive) - left)
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
    kept = next(iter(calls[-1].values())).kept if calls else frozenset[int]()
    for call in calls:
        chosen.append(call[min(call.keys() & kept)])
        kept = chosen[-1].kept
    return chosen


def _shortest_cycle(graph: nx.DiGraph[int]) -> list[int]:
    import networkx as nx

    best: list[int] = []
    for call in sorted(graph)[:_SEARCHED]:
        for after in sorted(graph.successors(call))[:_SEARCHED]:
            path = nx.shortest_path(graph, after, call)
            if not best or len(path) < len(best):
                best = [call, *path[:-1]]
            if len(best) == 2:
                return best
    return best
