"""Chooses the ranks of a dry run: for a verdict all of a small job; of a large one some, and more where those differ.

A price needs one rank of each kind: ranks that have the same place in their groups have the same program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.record import Group
from simcoll.core.trace import Trace
from simcoll.dryrun.extrapolate import programs

MOST_ALL = 64
"""Jobs of up to so many ranks are run whole; of larger ones, ``auto`` chooses at most so many."""

_FIRST = 4


def first_choice(world_size: int) -> list[int]:
    """The ranks to begin with: all, or the first four, two in the middle and the last two (odd and even)."""
    if world_size <= MOST_ALL:
        return list(range(world_size))
    middle = world_size // 2
    return sorted({*range(_FIRST), middle - 1, middle, world_size - 2, world_size - 1})


def next_choice(traces: Sequence[Trace], run: Collection[int], world_size: int) -> list[int]:
    """The ranks to run next: first and last members of known groups, else ranks between two whose programs differ.

    ``run`` are all ranks that have run: one without a trace differs from those with one, and is not run again.
    """
    room = MOST_ALL - len(run)
    if world_size <= MOST_ALL or room <= 0:
        return []
    wanted = _corners(traces, run) or _between(traces, run)
    return sorted(list(wanted)[:room])


def _corners(traces: Sequence[Trace], run: Collection[int]) -> list[int]:
    """The first and last members of every known group that have not run."""
    found: dict[int, None] = {}
    for group in dict.fromkeys(group for trace in traces for group in trace.groups):
        found |= dict.fromkeys((group.ranks[0], group.ranks[-1]))
    return [rank for rank in found if rank not in run]


def _between(traces: Sequence[Trace], run: Collection[int]) -> list[int]:
    """The rank in the middle between two neighbours that have run and whose programs differ."""
    known: Mapping[int, bytes] = programs(traces)
    pairs = [(here, there) for here, there in itertools.pairwise(sorted(run)) if known.get(here) != known.get(there)]
    return [(here + there) // 2 for here, there in pairs if there - here > 1]


_NODE = 8
MOST_PRICED = 16
"""A price takes at most so many ranks."""


def first_priced(world_size: int) -> list[int]:
    """The ranks that a price begins with: all of up to eight; else the first two, as the first often does more, and the
    last.
    """
    return list(range(world_size)) if world_size <= _NODE else [0, 1, world_size - 1]


def next_priced(traces: Sequence[Trace], run: Collection[int], world_size: int) -> list[int]:
    """The ranks that a price needs next: in each group of the first and of the last rank, the first and last members.

    Then, of each such group, a member between two whose programs differ.
    """
    room = MOST_PRICED - len(run)
    ends = [trace for trace in traces if trace.rank in (0, world_size - 1)]
    groups = list(dict.fromkeys(group for trace in ends for group in trace.groups))
    corners = dict.fromkeys(rank for group in groups for rank in (group.ranks[0], group.ranks[-1]) if rank not in run)
    known = programs(traces)
    wanted = corners or dict.fromkeys(rank for group in groups for rank in _inside(group, known))
    return sorted([rank for rank in wanted if rank not in run][: max(room, 0)])


def _inside(group: Group, known: Mapping[int, bytes]) -> Iterator[int]:
    """A member between neighbours that ran and whose programs differ: the second one, or else that in the middle."""
    places = [place for place, rank in enumerate(group.ranks) if rank in known]
    for here, there in itertools.pairwise(places):
        if there - here > 1 and known[group.ranks[here]] != known[group.ranks[there]]:
            yield group.ranks[(here + there) // 2 if here else 1]


@dataclass(frozen=True, slots=True)
class RankChoice:
    """A way to choose ranks: those to begin with, by the world size, and those to run next, by the traces so far."""

    first: Callable[[int], list[int]]
    following: Callable[[Sequence[Trace], Collection[int], int], list[int]]


FOR_VERDICT = RankChoice(first_choice, next_choice)
FOR_PRICE = RankChoice(first_priced, next_priced)
