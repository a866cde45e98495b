"""What torch's Flight Recorder says of a rank, put together with the rank's black box.

The black box wins for what it states. The dump adds what it knows better, how far the device came; that torch wrote it,
and when; and the calls of ranks that left no black box. Both number the calls of a group, but not always alike: only
calls whose numbers are shown to mean the same are put together, and what is not used is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Event, Group, State
from simcoll.core.trace import DUMPED, ON_DEVICE, REPLAYED, MemoryTrace, Slots, Trace, altered
from simcoll.spec.collectives import COLLECTIVES

_CLOCKS_NS: Final = 5_000_000
"""So much earlier a dump may say that a call was made than the black box, which writes it down before: both read the
clocks of one host, one of which may be set in between."""

_ALL: Final = (1 << 32) - 1
_OPEN: Final = (State.SCHEDULED, State.STARTED)

_Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Merged:
    """The traces of a job's ranks, by rank, and what is to be said of how they were put together."""

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
    """A black box with what the dump of the same rank adds; the groups that both number alike go into ``alike``."""
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
    # Until the dump was written the black box had all that the rank did.
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
    """The rows of both that are one call; None where that cannot be told."""
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
    """The rows of the calls that the backend was given, and what it counts them as: those left out that it refused, or
    that a CUDA graph made.
    """
    rows = rows[np.argsort(box.slots["sequence"][rows], kind="stable")]
    slots = box.slots[rows]
    given = (slots["state"] != State.REJECTED) & (slots["flags"] & REPLAYED == 0)
    numbers: npt.NDArray[np.int64] = slots["sequence"].astype(np.int64) - np.cumsum(~given)
    return rows[given], numbers[given]


def _is_one(box: Trace, ours: _Index, dump: Trace, theirs: _Index, *, strict: bool) -> bool:
    """Whether these may be the same calls; ``strict`` asks that each was noted before the next one was made."""
    made, noted = box.slots["scheduled_ns"][ours].astype(np.int64), dump.slots["scheduled_ns"][theirs].astype(np.int64)
    if (noted < made - _CLOCKS_NS).any() or (strict and (noted[:-1] > made[1:]).any()):
        return False
    calls = np.stack([box.slots["signature"][ours], dump.slots["signature"][theirs]])
    for signature, other in np.unique(calls, axis=1).T.tolist():
        if signature >= len(box.signatures) or other >= len(dump.signatures):
            return False
        # A name that the table does not have tells nothing.
        ops = box.signatures[signature].op, dump.signatures[other].op
        if ops[0] != ops[1] and ops[1] in COLLECTIVES:
            return False
    return True


def _tell(slots: Slots, rows: _Index, said: Slots) -> None:
    """Write down how far the device came, where the rank itself had not seen it."""
    left = np.isin(slots["state"][rows], _OPEN)
    ended, runs = left & (said["state"] == State.COMPLETED), left & (said["state"] == State.STARTED)
    slots["state"][rows[ended]] = State.COMPLETED
    slots["finished_ns"][rows[ended]] = np.maximum(said["finished_ns"][ended], slots["scheduled_ns"][rows[ended]])
    slots["state"][rows[runs]] = State.STARTED
    slots["flags"][rows[runs]] |= np.uint8(ON_DEVICE)


def _only_dumped(dump: Trace, boxes: Sequence[Trace], alike: set[str]) -> Trace:
    """The dump of a rank without a black box, its groups as the others know them.

    Of a group whose calls no other rank shows to be numbered alike nothing is compared.
    """
    known = {group.name: group for box in boxes for group in box.groups if dump.rank in group.ranks}
    groups = tuple(known.get(group.name, group) for group in dump.groups)
    foreign = [index for index, group in enumerate(groups) if group.name in known and group.name not in alike]
    kept = ~np.isin(dump.slots["group"], foreign) | (dump.slots["p2p_sequence"] > 0)
    return MemoryTrace(
        dump.rank,
        max(dump.world_size, *(box.world_size for box in boxes)),
        dump.mode,
        groups,
        dump.signatures,
        dump.sources,
        [Event(DUMPED, dump.seen_ns, {}), *dump.events],
        dump.slots[kept],
        {**dump.dropped, **dict.fromkeys(foreign, _ALL)},
        dump.problems,
        dump.dropped_p2p,
        dump.unknown,
        dump.seen_ns,
    )
