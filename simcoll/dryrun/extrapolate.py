"""Extrapolates to ranks that did not run: each gets the program of a rank with the same place in its groups.

The groups of such a rank are known where every rank that ran created all groups, as ``new_group`` requires. Otherwise
they follow the pattern of a known group: ranks at equal distances, as along a dimension of a mesh.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simcoll.core.record import Group, Members
from simcoll.core.trace import Trace, altered
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind


def programs(traces: Iterable[Trace]) -> dict[int, bytes]:
    """A digest of each rank's calls in order; ranks whose calls look the same have the same digest."""
    return {trace.rank: _program(trace) for trace in traces}


def _program(trace: Trace) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    calls = [repr(_common_part(call)).encode() for call in trace.signatures]
    sizes = [str(len(group.ranks)).encode() for group in trace.groups]
    lines = [f"{source.file}:{source.line};".encode() for source in trace.sources]
    for slot in trace.slots:
        digest.update(calls[slot["signature"]] + sizes[slot["group"]] + lines[slot["source"]])
    return digest.digest()


def _common_part(call: Call) -> tuple[object, ...]:
    """Returns the parts of a call that are equal on all ranks of one program: not the device index, for instance."""
    buffers = [(buffer.shape, buffer.dtype, buffer.device) for buffer in (*call.inputs, *call.outputs)]
    return call.op, call.reduce_op, len(call.inputs), buffers


Place = tuple[tuple[int, int], ...]
"""The size of each of a rank's groups and the rank's place in it, in creation order, without groups of all ranks."""


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """The traces of all ranks; ``stand_ins`` maps each rank that did not run to the rank whose program it gets.

    ``approximate`` are those for which no rank with the same place ran although programs depend on the place;
    ``ungrouped`` are those whose groups are not known, so that they are left out.
    """

    traces: list[Trace]
    stand_ins: Mapping[int, int]
    approximate: tuple[int, ...] = ()
    ungrouped: tuple[int, ...] = ()


def extrapolate(traces: Sequence[Trace], world_size: int) -> Extrapolation:
    """Extrapolate from the traces of some ranks to all ranks of a job."""
    extrapolator = _Extrapolator(traces)
    missing = sorted(set(range(world_size)) - {trace.rank for trace in traces})
    found = {rank: extrapolator.stand_in(rank) for rank in missing}
    made = [extrapolator.trace(rank, one) for rank, one in found.items() if one is not None]
    complete = sorted([*traces, *made], key=lambda trace: trace.rank)
    stand_ins = {rank: one.trace.rank for rank, one in found.items() if one is not None}
    approximate = tuple(rank for rank, one in found.items() if one is not None and not one.places_agree)
    return Extrapolation(complete, stand_ins, approximate, tuple(rank for rank, one in found.items() if one is None))


@dataclass(frozen=True, slots=True)
class _StandIn:
    """A rank that ran, the groups of the rank that it stands for, and whether the places of both agree."""

    trace: Trace
    groups: tuple[Group, ...]
    places_agree: bool


@dataclass(slots=True)
class _Extrapolator:
    traces: Sequence[Trace]
    _created: Mapping[tuple[int, int], tuple[int, ...]] = field(init=False)
    _places: Mapping[int, Place] = field(init=False)
    _relevant: frozenset[tuple[int, int]] = field(init=False)
    _of_rank: Mapping[int, list[tuple[int, ...]]] = field(init=False)
    _shifted: dict[tuple[int, tuple[int, ...]], Trace] = field(default_factory=dict)
    _pattern: dict[tuple[tuple[int, ...], int], Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._created = dict(_created_groups(self.traces))
        of_rank: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for _, ranks in sorted(self._created.items()):
            for rank in ranks:
                of_rank[rank].append(ranks)
        self._of_rank = of_rank
        self._places = {trace.rank: _place(trace.rank, trace.groups, trace.world_size) for trace in self.traces}
        self._relevant = _relevant_groups(self._places, programs(self.traces))

    def stand_in(self, rank: int) -> _StandIn | None:
        """The rank that ran with the most places in common, those that programs depend on first; then the nearest."""
        best: tuple[tuple[int, ...], _StandIn] | None = None
        for trace in self.traces:
            groups = self._groups(trace, rank)
            if groups is None:
                continue
            own, other = self._places[trace.rank], _place(rank, groups, trace.world_size)
            differ = [number for number, (one, two) in enumerate(zip(own, other, strict=True)) if one != two]
            matter = [number for number in differ if (len(own), number) in self._relevant]
            # Programs often have a case for the first rank, and for odd and even ones.
            score = len(matter), len(differ), trace.rank == 0, (trace.rank - rank) % 2, abs(trace.rank - rank)
            if best is None or score < best[0]:
                best = score, _StandIn(trace, groups, not matter)
        return None if best is None else best[1]

    def _groups(self, trace: Trace, rank: int) -> tuple[Group, ...] | None:
        """The groups of ``rank`` that correspond to those of ``trace``, in their order; None where there are none."""
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
        """The group with other members: one object for all of them."""
        key = group.ranks, members[0]
        if key not in self._pattern or self._pattern[key].ranks != members:
            self._pattern[key] = replace(group, ranks=members)
        return self._pattern[key]

    def _along(self, group: Group, rank: int) -> Group | None:
        """The group of a rank that corresponds to ``group``, if its ranks are at equal distances; None otherwise."""
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
        """The trace of a rank that did not run, with the records, events and lines of its stand-in."""
        by = tuple(
            (new.place(rank) or 0) - (old.place(one.trace.rank) or 0)
            for new, old in zip(one.groups, one.trace.groups, strict=True)
        )
        shifted = self._moved(one.trace, by)
        found = altered(shifted, shifted.slots, shifted.events)
        return replace(found, rank=rank, groups=one.groups, problems=())

    def _moved(self, trace: Trace, by: tuple[int, ...]) -> Trace:
        """The trace with the peers of its messages shifted as the rank's own place is."""
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


def _created_groups(traces: Sequence[Trace]) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """The members of groups by life and ordinal, from the events that announce their creation."""
    for trace in traces:
        for event in trace.events:
            ranks = event.data.get("ranks")
            numbers = event.data.get("life"), event.data.get("ordinal")
            if event.kind == "creating" and isinstance(ranks, list) and all(type(one) is int for one in numbers):
                yield numbers, Members(rank for rank in ranks if type(rank) is int)  # type: ignore[misc]


def _place(rank: int, groups: Sequence[Group], world_size: int) -> Place:
    return tuple((len(group.ranks), group.place(rank) or 0) for group in groups if len(group.ranks) < world_size)


def _relevant_groups(places: Mapping[int, Place], known: Mapping[int, bytes]) -> frozenset[tuple[int, int]]:
    """Groups (number of groups, index) that programs depend on: ranks whose places differ only there differ."""
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
    """The distance between the ranks of a mesh dimension; None where the ranks are no mesh dimension."""
    size, first = len(ranks), ranks[0]
    distance = ranks[1] - first if size > 1 else 1
    if distance < 1 or first // distance % size or list(ranks) != list(range(first, first + distance * size, distance)):
        return None
    return distance
