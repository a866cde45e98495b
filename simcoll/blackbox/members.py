"""The members of a group as they stand in a black box: ranks, and runs of ranks that lie equally far apart.

Every rank's file names the members of each of its groups. As plain lists, those of a job of 16,384 ranks take more
bytes, and more time to read, than all of its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from simcoll.blackbox.format import MAX_RANKS
from simcoll.core.record import Members

_LEAST = 4
"""Ranks that make a run: fewer are as short one by one."""

MOST_MEMBERS: Final = 1 << 24
"""Members that one file may state in all: as many as its table has room for one by one."""


def members_document(ranks: Sequence[int]) -> list[object]:
    """Ranks as JSON values: ``[7, [8, 512, 16]]`` is rank 7, then 512 ranks from 8 on, 16 apart.

    :meth:`KnownMembers.read` reads them back. Runs share no rank: members of which one comes twice are listed.
    """
    if len(set(ranks)) < len(ranks):
        return [*ranks]
    return [run[0] if len(run) == 1 else [run[0], len(run), run.step] for run in _runs(ranks)]


def _runs(ranks: Sequence[int]) -> Iterator[range]:
    """The ranks in order: runs of at least :data:`_LEAST`, and single ones."""
    start = 0
    while start < len(ranks):
        end, step = start + 1, 1
        if end < len(ranks):
            step = ranks[end] - ranks[start]
            while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
                end += 1
        if end - start < _LEAST:
            end, step = start + 1, 1
        yield range(ranks[start], ranks[start] + (end - start) * step, step)
        start = end


@dataclass(slots=True)
class Room:
    """How many members the groups of one file may still state that no file before it has stated."""

    left: int = MOST_MEMBERS


@dataclass(frozen=True, slots=True)
class KnownMembers:
    """The members that groups of many files state: one object for each, and one for each rank."""

    _known: dict[tuple[int | range, ...], Members] = field(default_factory=dict)
    _ranks: list[int] = field(default_factory=list)

    def read(self, document: object, room: Room) -> Members:
        """The members that JSON values state; raises ValueError or TypeError where they are none that a writer writes.

        What a few bytes state is bounded before it is made: each rank by the largest job, all by ``room``.
        """
        if not isinstance(document, list):
            raise TypeError("ranks")
        key = tuple([_rank(one) if type(one) is int else _run(one) for one in document])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._made(key, room)
        return known

    def _made(self, key: tuple[int | range, ...], room: Room) -> Members:
        runs = [one for one in key if isinstance(one, range)]
        count = len(key) + sum(len(run) - 1 for run in runs)
        if count > room.left:
            raise ValueError("too many members")
        room.left -= count
        ranks: list[int] = []
        for one in key:
            ranks += self._of_run(one) if isinstance(one, range) else (one,)
        if runs and len(set(ranks)) < count:
            raise ValueError("a run that overlaps")
        return Members(ranks)

    def _of_run(self, run: range) -> list[int]:
        """The ranks of a run, of which there is one object each: a job has thousands of large groups."""
        most = max(run[0], run[-1])
        if most >= len(self._ranks):
            self._ranks.extend(range(len(self._ranks), most + 1))
        return self._ranks[run.start : run.stop if run.stop >= 0 else None : run.step]


def _rank(value: int) -> int:
    if not 0 <= value < MAX_RANKS:
        raise ValueError("rank")
    return value


def _run(value: object) -> range:
    """The ranks that a first rank, a count and a step state."""
    if not isinstance(value, list) or len(value) != 3 or not all(type(one) is int for one in value):
        raise TypeError("run")
    first, count, step = value
    if not (1 < count <= MAX_RANKS and step and 0 <= first < MAX_RANKS and 0 <= first + (count - 1) * step < MAX_RANKS):
        raise ValueError("run")
    return range(first, first + count * step, step)
