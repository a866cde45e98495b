"""Puts the dumps of a job together: the rank of each file, the members of each group, one trace a rank.

:func:`merge` joins a rank's dump with its black box. The black box wins for the fields that it states. The dump adds
the progress of the device; the time at which torch wrote it; and the calls of ranks that left no black box. Both number
the calls of a group, but not always alike: only calls whose numbers are shown to mean the same are put together, and
unused calls are noted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Event, Group, State
from simcoll.core.trace import DUMPED, ON_DEVICE, REPLAYED, MemoryTrace, Slots, Trace, altered
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
    """The global rank of each dump: the one that it states, the number after ``rank`` in its name, or the last number
    in the names that tells the files apart; None where there is none.

    Names that differ in more than numbers, such as their ending, are looked at apart. A single name of its kind does
    not show which of its numbers is the rank.
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
    """Each name's number at the last place at which the numbers of all names differ, preferably below the limit.

    Where a rank has left several files there is no such place: then it is the one that counts 0, 1, 2.
    """
    # Folders count where there are several: the folder of a single file does not show its rank.
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
    """The dump of each rank: one that was not cut, of those the newest, of equally new ones the largest."""
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

    A rank that left no dump belongs to the job, and so to the default group, as well. The number of ranks is known
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
    """The groups that have no other members than these, although some rank's dump does not state them.

    They are those where the size of the job is stated and all ranks left a dump, or all belong to the group; where
    another rank's dump states the members; and where a call has a part for each rank, and so shows their number.
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


_CLOCKS_NS: Final = 5_000_000
"""So much earlier a dump may say that a call was made than the black box, which writes it down before: both read the
clocks of one host, one of which may be set in between."""

_ALL: Final = (1 << 32) - 1
_OPEN: Final = (State.SCHEDULED, State.STARTED)

_Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Merged:
    """The traces of a job's ranks, by rank, and notes on how they were put together."""

    traces: tuple[Trace, ...]
    notes: tuple[str, ...] = ()


def merge(boxes: Sequence[Trace], dumps: Sequence[Trace]) -> Merged:
    """Black boxes and dumps of one job as one trace a rank."""
    size = max((trace.world_size for trace in boxes), default=0)
    told = {trace.rank: trace for trace in dumps if trace.rank < size}
    alike, otherwise = set[str](), dict[int, list[str]]()
    found: dict[int, Trace] = {}
    for box in boxes:
        dump = told.get(box.rank)
        found[box.rank] = box if dump is None else _joined(box, dump, alike, otherwise)
    alone = [_only_dumped(dump, boxes, alike) for rank, dump in told.items() if rank not in found]
    found |= {trace.rank: trace for trace in alone}
    return Merged(tuple(found[rank] for rank in sorted(found)), tuple(_notes(dumps, size, otherwise, alone)))


def _notes(
    dumps: Sequence[Trace], size: int, otherwise: Mapping[int, Sequence[str]], alone: Sequence[Trace]
) -> list[str]:
    notes = [
        f"rank {rank}: its Flight Recorder dump numbers the calls of group {', '.join(names)} otherwise than its black "
        "box, so that it was not used for these"
        for rank, names in otherwise.items()
    ]
    if strangers := [trace.rank for trace in dumps if trace.rank >= size]:
        notes.append(f"{len(strangers)} Flight Recorder dumps are of ranks that this job does not have: left out")
    if alone:
        ranks = ", ".join(str(trace.rank) for trace in alone)
        notes.append(f"of rank {ranks} there is no black box, only a Flight Recorder dump")
    return notes


def _joined(box: Trace, dump: Trace, alike: set[str], otherwise: dict[int, list[str]]) -> Trace:
    """A black box with the additions of the same rank's dump; the groups that both number alike go into ``alike``."""
    slots = box.slots.copy()
    for index, group in enumerate(dump.groups):
        mine, theirs = _collectives(box, _last_named(box, group)), _last_life(dump, _collectives(dump, index))
        if not len(mine) or not len(theirs):
            continue
        pairs = _paired(box, mine, dump, theirs)
        if pairs is None:
            otherwise.setdefault(box.rank, []).append(group.name)
            continue
        alike.add(group.name)
        if "state" not in dump.unknown:
            _tell(slots, pairs[0], dump.slots[pairs[1]])
    event = Event(DUMPED, dump.seen_ns, {})
    events = sorted([*box.events, event], key=lambda one: one.time_ns)
    merged = altered(box, slots, events)
    ended = any(one.kind == "exit" for one in box.events)
    # Until the dump was written the black box had all of the rank's calls.
    return merged if ended else replace(merged, seen_ns=max(box.seen_ns, dump.seen_ns))


def _last_named(box: Trace, group: Group) -> int:
    """The group of a black box that a dump names, as it was made last; -1 where there is none, or it has others."""
    named = [index for index, known in enumerate(box.groups) if known.name == group.name]
    if not named or not (group.partial or set(box.groups[named[-1]].ranks) == set(group.ranks)):
        return -1
    return named[-1]


def _collectives(trace: Trace, index: int) -> _Index:
    """The rows of a group's collectives."""
    slots = trace.slots
    return np.flatnonzero((slots["group"] == index) & (slots["p2p_sequence"] == 0) & (slots["sequence"] > 0))


def _last_life(trace: Trace, rows: _Index) -> _Index:
    """Those since the group was made last: it then counts from 1 again."""
    sequences = trace.slots["sequence"][rows].astype(np.int64)
    begins = np.flatnonzero(np.diff(sequences) < 0)
    return rows[begins[-1] + 1 :] if len(begins) else rows


def _paired(box: Trace, mine: _Index, dump: Trace, theirs: _Index) -> tuple[_Index, _Index] | None:
    """The rows of both that are one call; None where that is not known."""
    mine, numbers = _as_the_backend_counts(box, _last_life(box, mine))
    if not len(mine):
        return None
    wanted = dump.slots["sequence"][theirs].astype(np.int64)
    place = int(np.searchsorted(box.slots["scheduled_ns"][mine], dump.slots["scheduled_ns"][theirs[-1]], "right")) - 1
    # Calls that a graph captures count for the backend alone: then all numbers are that many apart.
    for apart in dict.fromkeys((0, int(wanted[-1] - numbers[max(place, 0)]))):
        at = np.minimum(np.searchsorted(numbers, wanted - apart), len(numbers) - 1)
        both = numbers[at] == wanted - apart
        if both.any() and _is_one(box, mine[at[both]], dump, theirs[both], strict=apart != 0):
            return mine[at[both]], theirs[both]
    return None


def _as_the_backend_counts(box: Trace, rows: _Index) -> tuple[_Index, npt.NDArray[np.int64]]:
    """The rows of the calls that the backend was given, and its numbers of them, without calls that it refused, or that
    a CUDA graph made.
    """
    rows = rows[np.argsort(box.slots["sequence"][rows], kind="stable")]
    slots = box.slots[rows]
    given = (slots["state"] != State.REJECTED) & (slots["flags"] & REPLAYED == 0)
    numbers: npt.NDArray[np.int64] = slots["sequence"].astype(np.int64) - np.cumsum(~given)
    return rows[given], numbers[given]


def _is_one(box: Trace, ours: _Index, dump: Trace, theirs: _Index, *, strict: bool) -> bool:
    """True if these may be the same calls; ``strict`` asks that each was noted before the next one was made."""
    made, noted = box.slots["scheduled_ns"][ours].astype(np.int64), dump.slots["scheduled_ns"][theirs].astype(np.int64)
    if (noted < made - _CLOCKS_NS).any() or (strict and (noted[:-1] > made[1:]).any()):
        return False
    calls = np.stack([box.slots["signature"][ours], dump.slots["signature"][theirs]])
    for signature, other in np.unique(calls, axis=1).T.tolist():
        if signature >= len(box.signatures) or other >= len(dump.signatures):
            return False
        # A name that is not in the table shows nothing.
        ops = box.signatures[signature].op, dump.signatures[other].op
        if ops[0] != ops[1] and ops[1] in COLLECTIVES:
            return False
    return True


def _tell(slots: Slots, rows: _Index, said: Slots) -> None:
    """Write down the progress of the device, where the rank itself had not seen it."""
    left = np.isin(slots["state"][rows], _OPEN)
    ended, runs = left & (said["state"] == State.COMPLETED), left & (said["state"] == State.STARTED)
    slots["state"][rows[ended]] = State.COMPLETED
    seen: npt.NDArray[np.uint64] = said["finished_ns"][ended]
    made: npt.NDArray[np.uint64] = slots["scheduled_ns"][rows[ended]]
    slots["finished_ns"][rows[ended]] = np.maximum(seen, made)
    slots["state"][rows[runs]] = State.STARTED
    slots["flags"][rows[runs]] |= np.uint8(ON_DEVICE)


def _only_dumped(dump: Trace, boxes: Sequence[Trace], alike: set[str]) -> Trace:
    """The dump of a rank without a black box, its groups as the others know them.

    A group is not compared if no other rank shows that its calls are numbered alike.
    """
    known = {group.name: group for box in boxes for group in box.groups if dump.rank in group.ranks}
    groups = tuple(known.get(group.name, group) for group in dump.groups)
    foreign = [index for index, group in enumerate(groups) if group.name in known and group.name not in alike]
    kept = ~np.isin(dump.slots["group"], foreign) | (dump.slots["p2p_sequence"] > 0)
    found = altered(dump, dump.slots[kept], [Event(DUMPED, dump.seen_ns, {}), *dump.events])
    size = max(dump.world_size, *(box.world_size for box in boxes))
    return replace(found, world_size=size, groups=groups, dropped={**dump.dropped, **dict.fromkeys(foreign, _ALL)})
