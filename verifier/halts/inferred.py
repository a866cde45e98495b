"""A job of which nobody tells but its ranks' own records: that it stands, since when at least, and who is not there.

Nobody has watched such a job: it ran under another launcher, or left Flight Recorder dumps. That a rank did not come is
told only as far as its own record goes, so that three things are asked for before anybody is late. Somebody waits; its
own record shows for how long; and the record of the other goes on for as long and shows that it did not come.

A dump ends when it was written, and is written because something is wrong. But torch needs seconds to write one: it
looks up the names of all frames (2.4 s for four ranks on two cores), and the records are those of before. So three
seconds are asked for; a device may hold a call back behind its computation for ten. A black box ends when its rank
does, which nothing tells but what others still did, or is a copy, which says when it was made: there it takes half a
minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import (
    ASYNCHRONOUS,
    AWAITED,
    HANDED_ON,
    Slots,
    Stall,
    Trace,
    altered,
)
from simcoll.verifier.findings.device_queue import queued
from simcoll.verifier.halts.failed_calls import failed_calls

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
    """The traces with the calls marked in which their ranks wait or have failed waiting, and how the job stood.

    None where nobody waits, and where a rank has said that it failed.
    """
    left = {trace.rank for trace in traces if not _ended(trace)}
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
    """Whether a trace is a backend's own, which leaves fields out and says of no call whether somebody waits for it."""
    return bool(trace.unknown)


def are_dated(written: Sequence[int], since: int) -> bool:
    """Whether files that were written then (ns) tell, by that, for how long calls made ``since`` then have stood."""
    age = max(written) - since
    return age <= _SOON or (age <= _LONGEST and max(written) - min(written) >= _APART)


def _ended(trace: Trace) -> bool:
    return any(event.kind == "exit" for event in trace.events)


def _last_ns(trace: Trace) -> int:
    """The last moment of which a trace tells."""
    times = [int(trace.slots[name].max(initial=0)) for name in ("scheduled_ns", "started_ns", "finished_ns")]
    return max([*times, *(event.time_ns for event in trace.events[-1:])])


def _known_ns(trace: Trace, until: Mapping[int, int], last: int) -> int:
    """Up to when the job is known to have gone on without a word of this rank."""
    return last if is_dump(trace) else until[trace.rank]


def patience_of(dumps: Sequence[Trace]) -> int:
    """For how long (ns) a rank must be seen not to come."""
    return max(map(_patience, dumps), default=_AT_ONCE)


def _patience(trace: Trace) -> int:
    """A backend that says when calls began and ended queues them on a device."""
    slots = trace.slots
    return _QUEUED if bool(slots["started_ns"].any() or slots["finished_ns"].any()) else _AT_ONCE


def _writing_ns(traces: Sequence[Trace], until: Mapping[int, int], ends: Mapping[int, int]) -> int:
    """The most that any rank may have taken to write its record; one that is damaged says nothing of it."""
    whole = [until[trace.rank] - ends[trace.rank] for trace in traces if not (is_dump(trace) and trace.problems)]
    return max(0, min(whole, default=_QUEUED))


def _marked(trace: Trace, until: Mapping[int, int], failed: _Mask) -> Trace:
    """A dump whose calls are awaited where they have stood long enough or have failed."""
    slots = trace.slots.copy()
    slots["state"][failed] = State.FAILED
    begun = np.where(slots["started_ns"] > 0, slots["started_ns"], slots["scheduled_ns"]).astype(np.int64)
    standing = _unfinished(slots) & (until[trace.rank] - begun >= _patience(trace))
    slots["flags"] = np.where(standing | failed, slots["flags"] | AWAITED, slots["flags"] & ~np.uint8(AWAITED))
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
    """Whether a rank was ever in two synchronous collectives at once: what it waits in does not hold all of it up."""
    slots = trace.slots
    # A call that a device runs returns before it ends.
    inside = slots[(slots["p2p_sequence"] == 0) & ((slots["flags"] & ASYNCHRONOUS) == 0) & ~queued(trace)]
    inside = inside[np.argsort(inside["scheduled_ns"], kind="stable")]
    never = np.uint64(np.iinfo(np.uint64).max)
    ends = np.where(_unfinished(inside), never, inside["finished_ns"])
    return bool((inside["scheduled_ns"][1:] < np.maximum.accumulate(ends)[:-1]).any())
