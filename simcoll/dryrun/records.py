"""Makes the records of a dry run comparable: ranks ran at different times, and sizes may depend on guessed values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from simcoll.core.record import Event, Source, number, source_of, text
from simcoll.core.trace import MemoryTrace, Trace, altered
from simcoll.dryrun.rank.event_kinds import OTHER_JOB, SIZED_BY_OTHERS, TAINTED_READ, UNKNOWN_OBJECTS
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import DRY_RUN

_STEP_NS = 1000
_TIMES = ("scheduled_ns", "started_ns", "finished_ns")

Line: TypeAlias = tuple[str, int]
"""A file and a line number."""

Place = tuple[str, int, int, str]
"""The place of a call: group name, sequence number, p2p sequence number (0 for a collective), op."""


def comparable(traces: Sequence[Trace]) -> list[MemoryTrace]:
    """The traces with each rank's own order as time, and without sizes that depend on received values.

    A collective that one rank marks loses its sizes on every rank, a message at both ends.
    """
    marks = [_marks(trace) for trace in traces]
    in_rounds = [set(marked) for marked in _marked_collectives(traces, marks)]
    marks_message = any(place[2] for marked in marks for place in marked)
    ends = [_ends(trace) if marks_message else {} for trace in traces]
    messages = {one[place] for one, marked in zip(ends, marks, strict=True) for place in marked if place in one}
    at_both_ends = [{place for place, message in one.items() if message in messages} for one in ends]
    return [
        _with_order_as_time(trace, set().union(*own))
        for trace, *own in zip(traces, marks, at_both_ends, in_rounds, strict=True)
    ]


def sized_differently(traces: Sequence[Trace]) -> list[Source]:
    """The lines of collectives whose sizes differ between ranks and depend on received numbers on at least one."""
    marked = _marked_collectives(traces, [_marks(trace, objects=False) for trace in traces])
    sizes_at: dict[_Round, dict[object, Source]] = {}
    for trace, rounds in zip(traces, marked, strict=True):
        for row, place in _places(trace, trace.signatures) if rounds else ():
            if place in rounds:
                call = trace.signatures[int(trace.slots["signature"][row])]
                source = trace.sources[int(trace.slots["source"][row])]
                sizes_at.setdefault(rounds[place], {})[_sizes(call)] = replace(source, function="")
    return list(dict.fromkeys(next(iter(sizes.values())) for sizes in sizes_at.values() if len(sizes) > 1))


def tainted_reads(trace: Trace) -> list[Source]:
    """The lines at which a rank's program read values that other ranks would have sent."""
    return [source_of(event.data) for event in trace.events if event.kind == TAINTED_READ]


def last_ns(trace: Trace) -> int:
    """The end of a comparable trace."""
    times = [event.time_ns for event in trace.events] + [int(trace.slots[name].max(initial=0)) for name in _TIMES]
    return max(times) + _STEP_NS


def _marks(trace: Trace, *, objects: bool = True) -> set[Place]:
    """The calls whose sizes depend on received values, with or without those that carry ``objects``."""
    return {
        (text(event, "group"), number(event, "sequence") or 0, number(event, "message") or 0, text(event, "op"))
        for event in trace.events
        if event.kind == SIZED_BY_OTHERS and (objects or not event.data.get("objects"))
    }


def _places(trace: Trace, signatures: Sequence[Call]) -> Iterator[tuple[int, Place]]:
    """Each row and the place of its call."""
    for row, slot in enumerate(trace.slots):
        numbers = int(slot["sequence"]), int(slot["p2p_sequence"])
        yield row, (trace.groups[int(slot["group"])].name, *numbers, signatures[int(slot["signature"])].op)


_Round: TypeAlias = tuple[object, ...]
"""A group, an op, a line, and how often the rank had made that call there."""


def _marked_collectives(traces: Sequence[Trace], marks: Sequence[set[Place]]) -> list[dict[Place, _Round]]:
    """The collectives of each rank that any rank marks, with the round of the call that is marked.

    It is the call of the same round, as a rank that makes one call more has other numbers from there on; between ranks
    that make neither of the two rounds alike it is the call of the same number.
    """
    if not any(not place[2] for marked in marks for place in marked):
        return [{} for _ in traces]
    rounds = [_rounds(trace) for trace in traces]
    known = [{one: place for place, one in by_place.items()} for by_place in rounds]
    marked_rounds = [
        {place: by_place[place] for place in marked if place in by_place}
        for by_place, marked in zip(rounds, marks, strict=True)
    ]
    every = set[_Round]().union(*(one.values() for one in marked_rounds))
    found = []
    for by_place, by_round in zip(rounds, known, strict=True):
        here = {by_round[one]: one for one in every if one in by_round}
        for others, marked in zip(known, marked_rounds, strict=True):
            for place, one in marked.items():
                if one not in by_round and place in by_place and by_place[place] not in others:
                    here.setdefault(place, one)
        found.append(here)
    return found


def _rounds(trace: Trace) -> dict[Place, _Round]:
    """The collectives of a rank, each with its round."""
    counts: Counter[_Round] = Counter()
    found: dict[Place, _Round] = {}
    for row, place in _places(trace, trace.signatures):
        if not place[2]:
            source = trace.sources[int(trace.slots["source"][row])]
            here = (place[0], place[3], source.file, source.line)
            counts[here] += 1
            found[place] = (*here, counts[here])
    return found


def _ends(trace: Trace) -> dict[Place, tuple[object, ...]]:
    """The messages of a rank: of each, the same group, ranks, tag and number as at the other end."""
    counts: Counter[tuple[object, ...]] = Counter()
    found: dict[Place, tuple[object, ...]] = {}
    for row, place in _places(trace, trace.signatures):
        call = trace.signatures[int(trace.slots["signature"][row])]
        group = trace.groups[int(trace.slots["group"][row])]
        if place[2] and call.peer is not None and 0 <= call.peer < len(group.ranks):
            peer = group.ranks[call.peer]
            ends = (peer, trace.rank) if call.outputs else (trace.rank, peer)
            message = (group.name, group.ranks, *ends, call.tag or 0)
            counts[message] += 1
            found[place] = (*message, counts[message])
    return found


def _sizes(call: Call) -> object:
    buffers = [buffer.shape for buffer in call.inputs], [buffer.shape for buffer in call.outputs]
    return repr((buffers, call.input_splits, call.output_splits))


def _with_order_as_time(trace: Trace, marked: set[Place]) -> MemoryTrace:
    noted = np.array([event.time_ns for event in trace.events], np.uint64)
    times = np.unique(np.concatenate([*(trace.slots[name] for name in _TIMES), noted]))
    order = {int(time): (place + 1) * _STEP_NS for place, time in enumerate(times)}
    slots = trace.slots.copy()
    for name in _TIMES:
        slots[name] = np.where(slots[name] > 0, (np.searchsorted(times, slots[name]) + 1) * _STEP_NS, 0)
    events = [replace(event, time_ns=order[event.time_ns]) for event in trace.events if _is_of_real_run(event)]
    signatures = list(trace.signatures)
    if marked:
        _leave_out_sizes(trace, slots, signatures, marked)
    return replace(altered(trace, slots, events), mode=DRY_RUN, signatures=signatures, seen_ns=0)


def _is_of_real_run(event: Event) -> bool:
    return event.kind not in (TAINTED_READ, SIZED_BY_OTHERS, UNKNOWN_OBJECTS, OTHER_JOB)


def _leave_out_sizes(trace: Trace, slots: np.ndarray, signatures: list[Call], marked: set[Place]) -> None:
    emptied: dict[int, int] = {}
    for row in [row for row, place in _places(trace, signatures) if place in marked]:
        old = int(slots["signature"][row])
        if old not in emptied:
            emptied[old] = len(signatures)
            signatures.append(_without_sizes(signatures[old]))
        slots["signature"][row] = emptied[old]


def _without_sizes(call: Call) -> Call:
    return replace(
        call,
        inputs=tuple(map(_empty, call.inputs)),
        outputs=tuple(map(_empty, call.outputs)),
        input_splits=None,
        output_splits=None,
    )


def _empty(buffer: Buffer) -> Buffer:
    return replace(buffer, shape=(0,), order=None)
