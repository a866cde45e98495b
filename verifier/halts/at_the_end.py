"""A job as it stood when it was ended for standing still: what its ranks did when they were ended is no evidence.

torch's own watchdog ends a job too: it has the ranks write their dumps, aborts the communicators, and ends the
processes by SIGABRT. A kernel of a communicator that was aborted ends, and the calls behind it do, with whatever they
hold: from the first dump on no call has ended because it was done.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simcoll.core.record import State
from simcoll.core.trace import DUMPED, LaunchOutcome, Stall, Trace, altered

_DUMPING_NS: Final = 120 * 10**9
"""The most that may lie between a dump and the abort that it announces: torch waits a minute by default."""

_TICK_NS: Final = 10**7
"""By so much a file may seem older than it is: it is dated by the kernel's last tick, of which there are 100 a second
or more.
"""


def when_it_was_ended(
    traces: Sequence[Trace], outcome: LaunchOutcome | None, stall: Stall | None
) -> tuple[Sequence[Trace], LaunchOutcome | None]:
    """Traces and outcome as of ``stall``'s end; as they are where the job was not ended for it.

    Ranks are ended one after the other: those that go last still see their connections break, and fail, raise or exit
    for it. A rank that ended later than the stall counts as stopped.
    """
    if stall is None or not stall.over:
        until = None if outcome is None else _aborted_ns(traces, outcome)
        return traces if until is None else [_trace(trace, until) for trace in traces], outcome
    until = stall.seen_ns
    return [_trace(trace, until) for trace in traces], None if outcome is None else _outcome(outcome, until)


def _aborted_ns(traces: Sequence[Trace], outcome: LaunchOutcome) -> int | None:
    """When the first dump was written, at the latest, of a job in which a rank then was aborted; None where that is not
    so.
    """
    ends = [end.time_ns for end in outcome.ranks.values() if end.exit_code == -signal.SIGABRT and not end.stopped]
    dumps = [event.time_ns for trace in traces for event in trace.events if event.kind == DUMPED]
    if not ends or not dumps:
        return None
    last = [dump for dump in dumps if 0 <= min(ends) - dump <= _DUMPING_NS]
    return min(last) + _TICK_NS if last else None


def _trace(trace: Trace, until: int) -> Trace:
    slots = trace.slots
    later = slots["finished_ns"] > until
    events = [event for event in trace.events if event.time_ns <= until or event.kind == DUMPED]
    if not later.any() and len(events) == len(trace.events) and not (slots["scheduled_ns"] > until).any():
        return trace
    slots = slots.copy()
    slots["state"][later] = np.where(slots["started_ns"][later] > 0, State.STARTED, State.SCHEDULED)
    slots["finished_ns"][later] = 0
    return altered(trace, slots[slots["scheduled_ns"] <= until], events)


def _outcome(outcome: LaunchOutcome, until: int) -> LaunchOutcome:
    ranks = {
        rank: replace(end, stopped=True) if end.exit_code is not None and end.time_ns > until else end
        for rank, end in outcome.ranks.items()
    }
    return replace(outcome, ranks=ranks)
