"""A job as it stood when it was ended for standing still: what its ranks did when they were ended is no evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simcoll.record import State
from simcoll.verifier.trace import LaunchOutcome, Stall, Trace, altered


def when_it_was_ended(
    traces: Sequence[Trace], outcome: LaunchOutcome | None, stall: Stall | None
) -> tuple[Sequence[Trace], LaunchOutcome | None]:
    """Traces and outcome as of ``stall``'s end; as they are where the job was not ended for it.

    Ranks are ended one after the other: those that go last still see their connections break, and fail, raise or exit
    for it. A rank that ended later than the stall counts as stopped.
    """
    if stall is None or not stall.over:
        return traces, outcome
    until = stall.seen_ns
    return [_trace(trace, until) for trace in traces], None if outcome is None else _outcome(outcome, until)


def _trace(trace: Trace, until: int) -> Trace:
    slots = trace.slots
    later = slots["finished_ns"] > until
    events = [event for event in trace.events if event.time_ns <= until]
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
