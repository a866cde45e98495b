"""The summary of a job from its traces: when and how it was recorded, how far its groups came, where its ranks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simcoll.core.record import UNKNOWN_SOURCE, Source, State
from simcoll.core.trace import AWAITED, Life, Stall, Trace, record_at
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.findings.failures import Failure
from simcoll.verifier.findings.finding import RankState, RankStatus
from simcoll.verifier.findings.overview import Activity, Place, Summary
from simcoll.verifier.halts.device_position import device_row
from simcoll.verifier.views.bandwidths import bandwidths
from simcoll.verifier.views.progress import kind_of, progress_of

_OPEN = (State.SCHEDULED, State.STARTED)
_INSIDE = (*_OPEN, State.FAILED, State.REJECTED)


def summarise(
    traces: Sequence[Trace],
    states: Sequence[RankState],
    failures: Mapping[int, Failure],
    stall: Stall | None,
    world_size: int,
    groups: Sequence[GroupColumns] = (),
) -> Summary:
    """Summarise a job; cost grows with the records, and in Python with the ranks only."""
    begin, end = _span(traces)
    return Summary(
        world_size,
        len(traces),
        tuple(sorted({trace.mode for trace in traces})),
        begin,
        end,
        progress_of(traces),
        _places(traces, states, failures, stall),
        tuple(sorted(set[str]().union(*(trace.unknown for trace in traces)))),
        bandwidths(groups),
    )


def _span(traces: Sequence[Trace]) -> tuple[int, int]:
    """When the first call was made, and when the last one was made or ended."""
    begins, ends = [], []
    for trace in traces:
        made, ended = trace.slots["scheduled_ns"], trace.slots["finished_ns"]
        known = made[made > 0]
        begins += [int(known.min())] if len(known) else []
        ends += [max(int(made.max()), int(ended.max()))] if len(made) else []
    return min(begins, default=0), max(ends, default=0)


def _places(
    traces: Sequence[Trace], states: Sequence[RankState], failures: Mapping[int, Failure], stall: Stall | None
) -> tuple[Place, ...]:
    """Where the ranks are, those at the same place together: the largest crowd first, then by rank."""
    by_rank = {trace.rank: trace for trace in traces}
    crowds: dict[object, list[Place]] = {}
    ended: dict[tuple[Life, int], bool] = {}
    for state in states:
        place = _place(state, by_rank, failures.get(state.rank), stall, ended)
        crowds.setdefault(_key(place), []).append(place)
    together = [_together(crowd) for crowd in crowds.values()]
    return tuple(sorted(together, key=lambda place: (-len(place.ranks), place.ranks)))


def _place(
    state: RankState,
    traces: Mapping[int, Trace],
    failure: Failure | None,
    stall: Stall | None,
    ended: dict[tuple[Life, int], bool],
) -> Place:
    trace = traces.get(state.rank)
    line = UNKNOWN_SOURCE if stall is None else stall.places.get(state.rank, UNKNOWN_SOURCE)
    reason = "" if failure is None else _reason(failure)
    bare = Place((state.rank,), Activity.UNSEEN, state.status.value, line=line, reason=reason)
    device = None if state.status is RankStatus.FINISHED else device_row(traces, state.rank, ended)
    row = None if trace is None else _row(trace) if device is None else device
    record = None if trace is None or row is None else record_at(trace, row)
    if trace is None or row is None or record is None:
        return replace(bare, activity=_activity(state.status, Activity.UNSEEN))
    # A dump does not say whether a call is asynchronous, nor has a last one that seems open always begun to wait.
    awaited = bool(int(trace.slots[row]["flags"]) & AWAITED) or not (record.asynchronous or trace.unknown)
    going_on = Activity.OWN_CODE
    if record.state in _OPEN:
        busy = stall is not None and state.rank in stall.busy
        going_on = Activity.WAITS if awaited and not busy else Activity.OPEN
    elif record.state is State.FAILED and trace.unknown:
        going_on = Activity.FAILED
    return replace(
        bare,
        activity=_activity(state.status, going_on),
        group=trace.groups[int(trace.slots[row]["group"])],
        groups=1,
        record=record,
        inside=record.state in _INSIDE,
        since_ns=record.scheduled_ns,
    )


def _row(trace: Trace) -> int | None:
    """The row that tells where a rank is: the first call for which it waits, otherwise its last one."""
    slots = trace.slots
    waits = np.flatnonzero((slots["state"] <= State.STARTED) & (slots["flags"] & AWAITED != 0))
    if len(waits):
        return int(waits[0])
    return len(slots) - 1 if len(slots) else None


def _activity(status: RankStatus, going_on: Activity) -> Activity:
    """A process that the launcher stopped is where it was before."""
    if status is RankStatus.FAILED:
        return Activity.FAILED
    return Activity.ENDED if status is RankStatus.FINISHED else going_on


def _reason(failure: Failure) -> str:
    """A failure in a few words: what was raised and why it ended are the finding's to tell."""
    return f"raised {failure.type}" if failure.type else failure.text()


def _key(place: Place) -> object:
    """What is equal for ranks at the same place; groups of one kind count as one."""
    record = place.record
    call: tuple[object, ...] = ()
    if record is not None and place.group is not None:
        source: Source = record.source
        at = (source.file, source.line)
        call = (kind_of(place.group), record.call.op, record.sequence, record.p2p_sequence, record.state, at)
    line = (place.line.file, place.line.line)
    return (place.activity, place.process, place.inside, place.reason, line, call)


def _together(crowd: Sequence[Place]) -> Place:
    ranks = tuple(sorted(rank for place in crowd for rank in place.ranks))
    times = [place.since_ns for place in crowd if place.since_ns]
    names = {(place.group.name, place.group.ranks) for place in crowd if place.group is not None}
    return replace(crowd[0], ranks=ranks, since_ns=min(times, default=0), groups=len(names))
