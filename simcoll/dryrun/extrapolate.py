"""Ranks that did not run, filled in with the programs of ranks that did and have the same place in their groups.

Which groups such a rank is in is known where those that ran made all groups, as ``new_group`` has it, and is otherwise
taken from the pattern of a group that is known: ranks at equal distances, as along a dimension of a mesh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simcoll.core.record import Group, Members
from simcoll.core.trace import MemoryTrace, Trace, altered
from simcoll.dryrun.choose_ranks import programs
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.spec.table import COLLECTIVES, Kind

Place = tuple[tuple[int, int], ...]
"""Of each group of a rank but those of all ranks, in the order in which they were made: its size, the rank's place."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The traces of all ranks; ``stand_ins`` says whose program each rank that did not run has.

    ``unlike`` are those of them for which no rank with the same place ran where programs depend on the place,
    ``ungrouped`` those whose groups are not known, so that they are left out.
    """

    traces: list[Trace]
    stand_ins: Mapping[int, int]
    unlike: tuple[int, ...] = ()
    ungrouped: tuple[int, ...] = ()


def filled_in(traces: Sequence[Trace], world_size: int) -> Filled:
    """All ranks of a job, given the traces of some."""
    filling = _Filling(traces)
    missing = sorted(set(range(world_size)) - {trace.rank for trace in traces})
    found = {rank: filling.stand_in(rank) for rank in missing}
    made = [filling.trace(rank, one) for rank, one in found.items() if one is not None]
    everybody = sorted([*traces, *made], key=lambda trace: trace.rank)
    stand_ins = {rank: one.trace.rank for rank, one in found.items() if one is not None}
    unlike = tuple(rank for rank, one in found.items() if one is not None and not one.alike)
    return Filled(everybody, stand_ins, unlike, tuple(rank for rank, one in found.items() if one is None))


@dataclass(frozen=True, slots=True)
class _StandIn:
    """A rank that ran, the groups that the other one has in the place of its own, and whether their places agree."""

    trace: Trace
    groups: tuple[Group, ...]
    alike: bool


@dataclass(slots=True)
class _Filling:
    traces: Sequence[Trace]
    _made: Mapping[tuple[int, int], tuple[int, ...]] = field(init=False)
    _places: Mapping[int, Place] = field(init=False)
    _matters: frozenset[tuple[int, int]] = field(init=False)
    _of_rank: Mapping[int, list[tuple[int, ...]]] = field(init=False)
    _shifted: dict[tuple[int, tuple[int, ...]], Trace] = field(default_factory=dict)
    _pattern: dict[tuple[tuple[int, ...], int], Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = dict(_made(self.traces))
        of_rank: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for _, ranks in sorted(self._made.items()):
            for rank in ranks:
                of_rank[rank].append(ranks)
        self._of_rank = of_rank
        self._places = {trace.rank: _place(trace.rank, trace.groups, trace.world_size) for trace in self.traces}
        self._matters = _that_matter(self._places, programs(self.traces))

    def stand_in(self, rank: int) -> _StandIn | None:
        """The rank that ran with the most places in common, those first on which programs depend; then the nearest."""
        best: tuple[tuple[int, ...], _StandIn] | None = None
        for trace in self.traces:
            groups = self._groups(trace, rank)
            if groups is None:
                continue
            own, other = self._places[trace.rank], _place(rank, groups, trace.world_size)
            differ = [number for number, (one, two) in enumerate(zip(own, other, strict=True)) if one != two]
            matter = [number for number in differ if (len(own), number) in self._matters]
            # Programs often have a case for the first rank, and for odd and even ones.
            score = len(matter), len(differ), trace.rank == 0, (trace.rank - rank) % 2, abs(trace.rank - rank)
            if best is None or score < best[0]:
                best = score, _StandIn(trace, groups, not matter)
        return None if best is None else best[1]

    def _groups(self, trace: Trace, rank: int) -> tuple[Group, ...] | None:
        """The groups of a rank that are like those of one that ran, in the same order; None where there are none."""
        known = self._of_rank.get(rank, [])
        own = self._of_rank.get(trace.rank, [])
        found = []
        for group in trace.groups:
            other: Group | None
            if group.place(rank) is not None:
                other = group
            elif len(own) == len(known) and group.ranks in own:
                other = self._like(group, known[own.index(group.ranks)])
            else:
                other = self._along(group, rank)
            if other is None or len(other.ranks) != len(group.ranks):
                return None
            found.append(other)
        return tuple(found)

    def _like(self, group: Group, members: tuple[int, ...]) -> Group:
        """A group of other members: one object for all who are in it."""
        key = group.ranks, members[0]
        if key not in self._pattern or self._pattern[key].ranks != members:
            self._pattern[key] = replace(group, ranks=members)
        return self._pattern[key]

    def _along(self, group: Group, rank: int) -> Group | None:
        """The group of a rank that is like another one, of ranks at equal distances; None where that one is not so."""
        distance = _distance(group.ranks)
        if distance is None:
            return None
        size = len(group.ranks)
        begin = rank - rank // distance % size * distance
        key = group.ranks, begin
        if key not in self._pattern:
            self._pattern[key] = replace(group, ranks=tuple(range(begin, begin + distance * size, distance)))
        return self._pattern[key]

    def trace(self, rank: int, one: _StandIn) -> Trace:
        """The trace of a rank that did not run; records, events and lines are those of the other one."""
        by = tuple(
            (new.place(rank) or 0) - (old.place(one.trace.rank) or 0)
            for new, old in zip(one.groups, one.trace.groups, strict=True)
        )
        shifted = self._moved(one.trace, by)
        return MemoryTrace(
            rank,
            shifted.world_size,
            shifted.mode,
            one.groups,
            shifted.signatures,
            shifted.sources,
            shifted.events,
            shifted.slots,
            shifted.dropped,
            (),
            shifted.dropped_p2p,
            shifted.unknown,
            shifted.seen_ns,
        )

    def _moved(self, trace: Trace, by: tuple[int, ...]) -> Trace:
        """The trace with the peers of its messages as far away as they were, in groups where the place is another."""
        if not any(by) or not (trace.slots["p2p_sequence"] > 0).any():
            return trace
        key = trace.rank, by
        if key not in self._shifted:
            self._shifted[key] = _with_peers(trace, by)
        return self._shifted[key]


def _with_peers(trace: Trace, by: Sequence[int]) -> Trace:
    slots, signatures = trace.slots.copy(), list(trace.signatures)
    known: dict[tuple[int, int], int] = {}
    for row in (slots["p2p_sequence"] > 0).nonzero()[0].tolist():
        old, group = int(slots["signature"][row]), int(slots["group"][row])
        if (old, group) not in known:
            moved = _peer_moved(signatures[old], by[group], len(trace.groups[group].ranks))
            known[old, group] = old if moved is signatures[old] else len(signatures)
            if moved is not signatures[old]:
                signatures.append(moved)
        slots["signature"][row] = known[old, group]
    found = altered(trace, slots, trace.events)
    return replace(found, signatures=signatures)


def _peer_moved(call: Call, by: int, size: int) -> Call:
    row = COLLECTIVES.get(call.op)
    if row is None or row.kind is not Kind.POINT_TO_POINT or call.peer in (None, ANY_SOURCE) or not by:
        return call
    assert call.peer is not None
    return replace(call, peer=(call.peer + by) % size)


def _made(traces: Sequence[Trace]) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """Groups in the order in which all ranks make them, by life and number."""
    for trace in traces:
        for event in trace.events:
            ranks = event.data.get("ranks")
            numbers = event.data.get("life"), event.data.get("ordinal")
            if event.kind == "creating" and isinstance(ranks, list) and all(type(one) is int for one in numbers):
                yield numbers, Members(rank for rank in ranks if type(rank) is int)  # type: ignore[misc]


def _place(rank: int, groups: Sequence[Group], world_size: int) -> Place:
    return tuple((len(group.ranks), group.place(rank) or 0) for group in groups if len(group.ranks) < world_size)


def _that_matter(places: Mapping[int, Place], known: Mapping[int, bytes]) -> frozenset[tuple[int, int]]:
    """Groups (how many a rank has, which of them) on whose place programs depend: ranks differ that agree elsewhere."""
    found = set()
    for number in range(max(map(len, places.values()), default=0)):
        seen: dict[tuple[object, ...], bytes] = {}
        for rank, place in places.items():
            if number < len(place):
                rest = len(place), place[:number], place[number + 1 :]
                if seen.setdefault(rest, known[rank]) != known[rank]:
                    found.add((len(place), number))
    return frozenset(found)


def _distance(ranks: Sequence[int]) -> int | None:
    """How far apart the ranks of a dimension of a mesh are; None where they are none."""
    size, first = len(ranks), ranks[0]
    distance = ranks[1] - first if size > 1 else 1
    if distance < 1 or first // distance % size or list(ranks) != list(range(first, first + distance * size, distance)):
        return None
    return distance
