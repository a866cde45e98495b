"""The dumps of a job put together: which rank wrote each file, who belongs to which group, one trace a rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simcoll.core.record import Group
from simcoll.core.trace import MemoryTrace, Trace
from simcoll.errors import UnreadableError
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.flight_recorder.dump import Dump, DumpGroup

MODE: Final = "flight recorder"
"""The ``mode`` of these traces."""

_TOKEN: Final = re.compile(r"(?<!local)(?<!local[_-])rank\D{0,2}(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,7}(?!\d)")
_DEFAULT: Final = ("default_pg",)
"""Descriptions of the group of all ranks."""
_MOST_RANKS: Final = 1 << 20
"""A larger number is no rank's."""
_MOST_MEMBERS: Final = 1 << 22
"""Members of all default groups together; a process has one at a time."""


def traces_of(dumps: Sequence[Dump]) -> list[Trace]:
    """One trace a rank, by rank; raises :class:`UnreadableError` where no file says whose dump it is."""
    by_rank, notes = _one_a_rank(dumps)
    if not dumps:
        return []
    if not by_rank:
        raise UnreadableError(
            f"{dumps[0].path}: neither the dump nor its name says which rank wrote it; "
            "put the global rank into the file name, as in nccl_trace_rank_3"
        )
    world_size = max([1 + max(by_rank), *(dump.world_size for dump in by_rank.values())])
    members = _members(by_rank, world_size)
    return [_trace(rank, dump, members, world_size, notes.get(rank, ())) for rank, dump in sorted(by_rank.items())]


def ranks_of(dumps: Sequence[Dump]) -> list[int | None]:
    """The global rank of each dump: what it says itself, the number after ``rank`` in its name, or the last number in
    the names that tells the files apart; None where there is none.

    Names that differ in more than numbers, such as their ending, are looked at apart. Which number is meant where one
    is alone among others, nobody knows.
    """
    found = [dump.rank if dump.rank is not None else _token(dump.path) for dump in dumps]
    rest = [index for index, rank in enumerate(found) if rank is None]
    alike: dict[str, list[int]] = {}
    for index in rest:
        alike.setdefault(_NUMBER.sub("#", os.path.basename(dumps[index].path)), []).append(index)
    limit = max((dump.world_size for dump in dumps), default=0) or _MOST_RANKS
    for name, indices in alike.items():
        if len(indices) == 1 < len(rest) and name.count("#") > 1:
            continue
        for index, rank in zip(indices, _numbers([dumps[index].path for index in indices], limit), strict=True):
            found[index] = rank
    return found


def _token(path: str) -> int | None:
    tokens: list[str] = _TOKEN.findall(os.path.basename(path))
    return int(tokens[-1]) if tokens else None


def _numbers(paths: Sequence[str], limit: int) -> Sequence[int | None]:
    """Of each name the number at the last place at which the numbers of all names differ, preferably below the limit.

    Where a rank has left several files there is no such place: then it is the one that counts 0, 1, 2.
    """
    # Folders count where there are several: the folder of a lone file says nothing of its rank.
    looks = [[os.path.basename(path) for path in paths], *([paths] if len(paths) > 1 else [])]
    places = sorted((place for names in looks for place in _places(names)), key=lambda place: max(place) >= limit)
    for place in places:
        if len(set(place)) == len(place):
            return place
    return next((place for place in places if set(place) == {*range(max(place) + 1)} != {0}), [None] * len(paths))


def _places(names: Sequence[str]) -> list[list[int]]:
    """The numbers in the names, by their place in them, the last one first."""
    numbers = [[int(number) for number in reversed(_NUMBER.findall(name))] for name in names]
    return [list(place) for place in zip(*numbers, strict=False)]


def _one_a_rank(dumps: Sequence[Dump]) -> tuple[dict[int, Dump], dict[int, tuple[str, ...]]]:
    """The dump of each rank: one that was not cut, of those the newest, of equally new ones the one that says most."""
    chosen: dict[int, Dump] = {}
    notes: dict[int, tuple[str, ...]] = {}
    ranks = ranks_of(dumps)
    for rank, dump in zip(ranks, dumps, strict=True):
        if rank is None:
            continue
        first = chosen.setdefault(rank, dump)
        if first is not dump:
            chosen[rank] = max(first, dump, key=_worth)
            notes[rank] = ("of several dumps the one that tells most is read",)
    nameless = [os.path.basename(dump.path) for rank, dump in zip(ranks, dumps, strict=True) if rank is None]
    if nameless and chosen:
        more = f" (and {len(nameless) - 1} more)" if len(nameless) > 1 else ""
        about = f"nothing says which rank wrote {nameless[0]}{more}: left out"
        notes[min(chosen)] = (*notes.get(min(chosen), ()), about)
    return chosen, notes


def _worth(dump: Dump) -> tuple[bool, int, int, bool, int]:
    last = int(dump.slots["scheduled_ns"].max(initial=0))
    return dump.complete, last, len(dump.slots), any(source.file for source in dump.sources), dump.seen_ns


def _members(by_rank: Mapping[int, Dump], world_size: int) -> dict[str, Group]:
    """The groups whose dumps do not say their members: the ranks that know the group, all for the default one.

    A rank that left no dump belongs to the job, and so to the default group, as well. How many ranks there are is known
    where some dump states it.
    """
    known = [(rank, group) for rank, dump in by_rank.items() for group in dump.groups]
    found: dict[str, set[int]] = {group.name: set() for rank, group in known if not _has_members(group, rank)}
    default = sorted({group.name for _, group in known if group.description in _DEFAULT})
    default = default[: max(1, _MOST_MEMBERS // world_size)]
    for rank, group in known:
        if group.name in found and group.name not in default:
            found[group.name].update(group.ranks if _has_members(group, rank) else (rank,))
    everybody = tuple(range(world_size))
    members = {name: everybody if name in default else tuple(sorted(ranks)) for name, ranks in found.items()}
    known_whole = _known_whole(by_rank, members, world_size)
    return {name: Group(name, "", ranks, partial=name not in known_whole) for name, ranks in members.items()}


def _known_whole(by_rank: Mapping[int, Dump], members: Mapping[str, tuple[int, ...]], world_size: int) -> set[str]:
    """The groups that have no members beside these, which no dump of some rank says.

    So it is where the size of the job is stated and all ranks left one, or all belong to the group, where another
    rank's dump does say them, and where one of the calls has a part for each rank, and so tells how many there are.
    """
    stated = any(dump.world_size for dump in by_rank.values())
    if stated and len(by_rank) == world_size:
        return {*members}
    shown = {
        group.name
        for rank, dump in by_rank.items()
        for index, group in enumerate(dump.groups)
        if group.name in members and (_has_members(group, rank) or _shows_size(dump, index, rank, members[group.name]))
    }
    return shown | {name for name, ranks in members.items() if stated and len(ranks) == world_size}


def _shows_size(dump: Dump, index: int, rank: int, members: Sequence[int]) -> bool:
    mine = dump.slots["signature"][dump.slots["group"] == index]
    place, size = members.index(rank), len(members)
    for call in (dump.calls[signature] for signature in np.unique(mine).tolist()):
        spec = COLLECTIVES.get(call.op)
        if spec is None or not spec.hidden(call, dump.unknown) <= {"root"}:
            continue
        made = replace(call, root=place) if spec.shows_root(call) else call
        if spec.fault(made, place, size) is None and spec.fault(made, place, size + 1) is not None:
            return True
    return False


def _has_members(group: DumpGroup, rank: int) -> bool:
    return rank in group.ranks


def _trace(rank: int, dump: Dump, members: Mapping[str, Group], world_size: int, notes: Sequence[str]) -> MemoryTrace:
    groups = tuple(
        Group(group.name, group.description, group.ranks)
        if _has_members(group, rank)
        else replace(members[group.name], description=group.description)
        for group in dump.groups
    )
    return MemoryTrace(
        rank,
        world_size,
        MODE,
        groups,
        dump.calls,
        dump.sources,
        (),
        dump.slots,
        dict(dump.dropped),
        (*dump.problems, *notes),
        dict(dump.dropped_p2p),
        dump.unknown,
        seen_ns=dump.seen_ns,
    )
