"""Infers from records alone that a job stalled, the latest time at which it began to, and the late ranks.

No monitor has watched such a job: it ran under another launcher, or left Flight Recorder dumps. A rank's absence is
known only as far as its own record goes, so a rank is late only if three things hold. Another rank waits; that rank's
record shows for how long; and the record of the late rank goes on for as long and shows that it did not come.

A dump ends when it was written, and is written because something is wrong. But torch needs seconds to write one: it
looks up the names of all frames (2.4 s for four ranks on two cores), and the records are those of before. So a wait of
three seconds is required; a device may hold a call back behind its computation for ten. A black box ends with its rank,
at a time that only later calls of others show; or it is a copy, which states when it was made. For a black box half a
minute is required.

:func:`standing_calls` finds calls that take longer than they may though all known members have come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Group, Record, State
from simcoll.core.trace import (
    ASYNCHRONOUS,
    AWAITED,
    HANDED_ON,
    Slots,
    Stall,
    Trace,
    altered,
)
from simcoll.verifier.findings.finding import CallPlace, Finding, Side, lines
from simcoll.verifier.findings.rules import DEADLOCK_CYCLE, MISSING_RANK
from simcoll.verifier.halts.device_queue import queued
from simcoll.verifier.halts.failed_calls import failed_calls
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.missing import unseen_ranks
from simcoll.verifier.halts.wait_graph import Wait, WaitGraph, awaited, call_at, in_time, waits_of

_SECOND: Final = 1_000_000_000
_AT_ONCE: Final = 3 * _SECOND
_QUEUED: Final = 10 * _SECOND
_UNSEEN: Final = 30 * _SECOND

_APART: Final = _SECOND // 100
_SOON: Final = 20 * _SECOND
_LONGEST: Final = 3600 * _SECOND
"""Files that were written within a hundredth of a second, long after the calls of which they tell, are copies, and tell
their own time; so are all that are older than any call gets, whose timeout is half an hour if nobody gave another.
Ranks whose clocks ring at one moment write as close together, but soon."""

_Mask = npt.NDArray[np.bool_]


def stall_of_records(traces: Sequence[Trace]) -> tuple[Sequence[Trace], Stall | None]:
    """The traces, in which the calls are marked in which ranks wait or have failed waiting, and the job's stall.

    None where no rank waits, and where a rank has recorded its own failure.
    """
    left = {trace.rank for trace in traces if all(event.kind != "exit" for event in trace.events)}
    if not left or any(event.kind == "exception" for trace in traces for event in trace.events):
        return traces, None
    ends = {trace.rank: _last_ns(trace) for trace in traces}
    last = max(ends.values(), default=0)
    until = {trace.rank: (trace.seen_ns or last) if trace.rank in left else last for trace in traces}
    failed = failed_calls(traces, until)
    traces = [_marked(trace, until, failed[trace.rank]) if is_dump(trace) else trace for trace in traces]
    blocked = frozenset(trace.rank for trace in traces if _known_ns(trace, until, last) - ends[trace.rank] >= _UNSEEN)
    mine = [trace for trace in traces if trace.rank in left]
    waiting = {trace.rank: mask for trace in mine if (mask := _waits(trace, blocked)).any()}
    if not waiting:
        return traces, None
    boxes = [trace for trace in mine if trace.rank in waiting and not is_dump(trace)]
    since = min(int(trace.slots["scheduled_ns"][waiting[trace.rank]].min()) for trace in mine if trace.rank in waiting)
    patience = _UNSEEN if boxes else patience_of(traces)
    return traces, Stall(
        since,
        max(since, min(until[rank] for rank in waiting)),
        blocked=blocked,
        busy=frozenset(trace.rank for trace in boxes if _has_threads(trace)),
        over=not boxes,
        until=until,
        patience_ns=patience,
        writing_ns=_writing_ns(traces, until, ends),
        guessed=patience == _AT_ONCE,
        dated=bool(boxes) or are_dated([trace.seen_ns for trace in traces], since),
    )


def is_dump(trace: Trace) -> bool:
    """True for a backend's own trace, which leaves fields out and does not record whether a thread waits for a call."""
    return bool(trace.unknown)


def are_dated(written: Sequence[int], since: int) -> bool:
    """True if the times (ns) at which files were written show for how long calls made at ``since`` have been open."""
    age = max(written) - since
    return age <= _SOON or (age <= _LONGEST and max(written) - min(written) >= _APART)


def _last_ns(trace: Trace) -> int:
    """The last moment that a trace covers."""
    times = [int(trace.slots[name].max(initial=0)) for name in ("scheduled_ns", "started_ns", "finished_ns")]
    return max([*times, *(event.time_ns for event in trace.events[-1:])])


def _known_ns(trace: Trace, until: Mapping[int, int], last: int) -> int:
    """The time up to which the job is known to have gone on without a record of this rank."""
    return last if is_dump(trace) else until[trace.rank]


def patience_of(dumps: Sequence[Trace]) -> int:
    """The time (ns) for which a rank must be seen not to come."""
    return max(map(_patience, dumps), default=_AT_ONCE)


def _patience(trace: Trace) -> int:
    """A backend that records when calls began and ended queues them on a device."""
    slots = trace.slots
    return _QUEUED if bool(slots["started_ns"].any() or slots["finished_ns"].any()) else _AT_ONCE


def _writing_ns(traces: Sequence[Trace], until: Mapping[int, int], ends: Mapping[int, int]) -> int:
    """The longest time that any rank may have taken to write its record; damaged records are not counted."""
    whole = [until[trace.rank] - ends[trace.rank] for trace in traces if not (is_dump(trace) and trace.problems)]
    return max(0, min(whole, default=_QUEUED))


def _marked(trace: Trace, until: Mapping[int, int], failed: _Mask) -> Trace:
    """A dump whose calls are awaited where they have been open for long enough or have failed."""
    slots = trace.slots.copy()
    slots["state"][failed] = State.FAILED
    begun = np.where(slots["started_ns"] > 0, slots["started_ns"], slots["scheduled_ns"]).astype(np.int64)
    standing = _unfinished(slots) & (until[trace.rank] - begun >= _patience(trace))
    flags: npt.NDArray[np.uint8] = slots["flags"]
    slots["flags"] = np.where(standing | failed, flags | np.uint8(AWAITED), flags & ~np.uint8(AWAITED))
    return altered(trace, slots, trace.events)


def _unfinished(slots: Slots) -> _Mask:
    mask: _Mask = (slots["state"] == State.SCHEDULED) | (slots["state"] == State.STARTED)
    return mask


def _waits(trace: Trace, blocked: frozenset[int]) -> _Mask:
    slots = trace.slots
    flags = AWAITED | HANDED_ON if trace.rank in blocked else AWAITED
    open_ = _unfinished(slots) | (is_dump(trace) & (slots["state"] == State.FAILED))
    mask: _Mask = open_ & ((slots["flags"] & flags) != 0)
    return mask


def _has_threads(trace: Trace) -> bool:
    """True if a rank was ever in two synchronous collectives at once: then one wait does not block the whole rank."""
    slots = trace.slots
    # A call that a device runs returns before it ends.
    inside = slots[(slots["p2p_sequence"] == 0) & ((slots["flags"] & ASYNCHRONOUS) == 0) & ~queued(trace)]
    inside = inside[np.argsort(inside["scheduled_ns"], kind="stable")]
    never = np.uint64(np.iinfo(np.uint64).max)
    ends = np.where(_unfinished(inside), never, inside["finished_ns"])
    return bool((inside["scheduled_ns"][1:] < np.maximum.accumulate(ends)[:-1]).any())


_SHOWN = 8
_KNOT_NS, _UNCLEAR_NS = 2 * 10**9, 27 * 10**9
"""The extra time for which a call must be open where no record shows the missing rank: in a Gloo dump the last call may
have ended, and on a busy machine a dump takes ten seconds."""

_LARGEST_ELEMENT, _SLOW = 16, 10e6
"""Bytes of an element, at most, and bytes in a second that a slow network carries."""


def for_how_long(job: Job, wait: Wait) -> str:
    """The time for which a wait was seen, as `` for 8 s``; empty where it is not known."""
    stall = job.stall
    if stall is None or (not stall.watched and not stall.dated):
        return ""
    seconds = stall.seconds if stall.watched else _seconds_open(wait.rank, wait.record, stall)
    return f" for {seconds:.0f} s" if seconds or not stall.watched else ""


def _seconds_open(rank: int, record: Record, stall: Stall) -> float:
    return (stall.until[rank] - record.scheduled_ns) / 1e9


def standing_calls(job: Job, waits: WaitGraph, stall: Stall) -> list[Finding]:
    """In jobs known by records alone: calls to which all known members have come, and which take longer than they may.

    Where members are only known by their calls, and every rank of the job is in a call of one of several groups,
    each of these waits for a rank that is in another: SC204. Otherwise it is SC201 without a culprit: of calls of
    one group the first, to which all have come, holds up the others.
    """
    calls: dict[tuple[Group, int], list[tuple[int, Record]]] = {}
    for rank in sorted(waits.waiting):
        group, record = awaited(job.traces[rank])
        if _takes_too_long(rank, record, stall) and not record.p2p_sequence:
            calls.setdefault((group, record.sequence), []).append((rank, record))
    if not calls:
        return []
    for rank, last in job.last.items():
        # A rank whose last call is one in which another rank waits has failed in it, just before its record ended.
        known = [group for group in job.traces[rank].groups if group.name == last.group]
        if rank not in waits.waiting and known and (known[0], last.sequence) in calls:
            calls[known[0], last.sequence].append((rank, last))
    everybody = {rank for ranks in calls.values() for rank, _ in ranks}
    size = job.size
    unseen = all(stall.misses(rank, record.scheduled_ns + _KNOT_NS) for (rank, record), *_ in calls.values())
    if stall.guessed and len(calls) > 1 and len(everybody) == size and unseen and (stall.dated or _alone(calls)):
        groups = {group for group, _ in calls}
        if len(groups) == 1:
            return [_unclear(calls, everybody)]
        # A call to which every rank of the job has come waits for nobody.
        if all(len(members) < size for members in calls.values()):
            return [_knot(calls)]
    long = any(stall.misses(rank, record.scheduled_ns + _UNCLEAR_NS) for (rank, record), *_ in calls.values())
    return [_unclear(calls, everybody)] if stall.dated and long else []


def _alone(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]]) -> bool:
    """True if a rank is in a call of a group of which only that rank is known: a group has more members than one."""
    return any(group.partial and len(group.ranks) == 1 for group, _ in calls)


def _takes_too_long(rank: int, record: Record, stall: Stall) -> bool:
    moved = sum(buffer.elements for buffer in (*record.call.inputs, *record.call.outputs)) * _LARGEST_ELEMENT
    return stall.until[rank] - record.scheduled_ns >= stall.patience_ns + moved / _SLOW * 1e9


def _knot(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]]) -> Finding:
    clauses = []
    for (group, _), members in list(calls.items())[:_SHOWN]:
        ranks = [rank for rank, _ in members]
        clauses.append(f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {call_at(group, members[0][1])}")
    everybody = tuple(sorted(rank for ranks in calls.values() for rank, _ in ranks))
    message = f"none of them can go on: {', '.join(clauses)}, and no rank is left that could come"
    return DEADLOCK_CYCLE.finding(message, ranks=everybody, sides=_waiting_sides(calls))


def _unclear(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]], ranks: Iterable[int]) -> Finding:
    group, _ = min(calls, key=lambda call: calls[call][0][1].scheduled_ns)
    sequence, *later = sorted(number for known, number in calls if known == group)
    members = calls[group, sequence]
    waiting = {rank for rank, _ in members}
    passed = {rank for number in later for rank, _ in calls[group, number]} - waiting
    left = f", which {ranks_text(passed)} had left" if passed else ""
    message = (
        f"{ranks_text(waiting)} waited in {members[0][1].call.op} (collective {sequence}){left}, and the "
        "records do not tell for whom: the cause may be a rank without a record, or a field that they do not state"
    )
    return MISSING_RANK.finding(
        message,
        group=group,
        sequence=sequence,
        ranks=ranks,
        sides=_waiting_sides(calls),
    )


def _waiting_sides(calls: Mapping[tuple[Group, int], Sequence[tuple[int, Record]]]) -> tuple[Side, ...]:
    return tuple(
        Side(
            tuple(rank for rank, _ in ranks),
            ranks[0][1].call,
            lines((rank, record.source) for rank, record in ranks),
            "waited",
            CallPlace(group, sequence),
        )
        for (group, sequence), ranks in list(calls.items())[:_SHOWN]
    )


def open_waits(job: Job, stall: Stall) -> list[str]:
    """The first call, in words, in which ranks waited when the records ended, where these end too soon."""
    waits = waits_of(job)
    for wait in in_time(waits.all()):
        if late := unseen_ranks(job, waits, wait):
            waiting = sorted({other.rank for other in waits.all() if other.call == wait.call})
            return [
                f"when the records end, {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in {wait.where}, to "
                f"which {ranks_text(late)} had not come; they end too soon to tell whether it hangs"
            ]
    return _all_came(job, waits, stall)


def _all_came(job: Job, waits: WaitGraph, stall: Stall) -> list[str]:
    """The first call, in words, that stays open though all known members have come to it."""
    standing = [(rank, *awaited(job.traces[rank])) for rank in sorted(waits.waiting)]
    found = [one for one in standing if not one[2].p2p_sequence and _takes_too_long(one[0], one[2], stall)]
    if not found:
        return []
    first, group, record = min(found, key=lambda one: one[2].scheduled_ns)
    ranks = [rank for rank, known, other in standing if (known, other.sequence) == (group, record.sequence)]
    seconds = f" for {_seconds_open(first, record, stall):.0f} s" if stall.dated else ""
    return [
        f"when the records end, {ranks_text(ranks)} had been in {call_at(group, record)}{seconds}, and all known "
        "members had come: it may just have ended, or a field that the records do not state, or a member without a "
        "record, may hold it up"
    ]
