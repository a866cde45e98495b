"""SC201: ranks that came to a call after others had given up waiting for them there, by the times in the records.

Such a rank did come, so that the wait-for graph shows nothing missing, and those that gave up are its victims. The
clocks of two hosts may differ. The collectives that their ranks completed before bound that difference, since none ends
on one rank before it has begun on all. A rank is late where it is late within these bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Record, State, number, text
from simcoll.core.trace import AWAITED, Life, Trace, lives, record_at
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.verifier.findings.finding import Finding, record_side
from simcoll.verifier.findings.rules import MISSING_RANK
from simcoll.verifier.halts.failures import Failure, Nature, nature_of
from simcoll.verifier.halts.job import Job

_COMPARED = 32
"""So many of the last collectives that two ranks completed are compared for their clocks."""

_SIDES = 8
_TIMED_OUT = re.compile(r"[Tt]imed out|[Tt]imeout|failed to pass monitoredBarrier", re.ASCII)


@dataclass(frozen=True, slots=True)
class LateCall:
    """A call that ranks (global) gave up, and the ranks that came later: each one's record, and its lateness (ns)."""

    group: Group
    gave_up: Mapping[int, Record]
    late: Mapping[int, tuple[Record, int]]

    @property
    def since_ns(self) -> int:
        """The time at which the first rank gave up."""
        return min(record.finished_ns for record in self.gave_up.values())


def late_calls(job: Job) -> list[LateCall]:
    """The calls that ranks failed in for want of others who came later, in order of time.

    Empty for a job that ended well, whose program has handled it. A rank that stood in another call when the others
    gave up, or had just given up itself there, was held up, and is not counted.
    """
    if job.clean or any(trace.unknown for trace in job.traces.values()):
        return []
    found = [late for late in (*_collectives(job), *_messages(job)) if not _dead_before(job, late)]
    return sorted(found, key=lambda late: late.since_ns)


def came_late(calls: Sequence[LateCall]) -> list[Finding]:
    """Ranks came to a call after the others there had given up waiting: the first such call, with the delays."""
    return [_finding(calls[0])] if calls else []


def follows_lateness(job: Job, calls: Sequence[LateCall], failure: Failure) -> bool:
    """True if a rank failed because of a wait that it gave up, or because it came when others had given up."""
    rank, time_ns = failure.rank, failure.time_ns
    last = job.last.get(rank)
    since = [late.gave_up[rank].finished_ns for late in calls if rank in late.gave_up]
    since += [late.late[rank][0].scheduled_ns for late in calls if rank in late.late]
    if not since or time_ns < min(since):
        return False
    return last is None or last.state is not State.COMPLETED or last.scheduled_ns <= min(since)


def _finding(late: LateCall) -> Finding:
    waited, came = sorted(late.gave_up), sorted(late.late)
    first = min(late.gave_up.values(), key=lambda record: record.finished_ns)
    number_there = first.p2p_sequence or first.sequence
    what = f"{first.call.op} ({'message' if first.p2p_sequence else 'collective'} {number_there})"
    seconds = (first.finished_ns - first.scheduled_ns) / 1e9
    least, most = min(after for _, after in late.late.values()), max(after for _, after in late.late.values())
    span = _time(most) if most - least < 10**8 else f"{_time(least)} to {_time(most)}"
    message = (
        f"{ranks_text(came)} came to {what} {span} after {ranks_text(waited)} had given up there, having waited "
        f"{seconds:.1f} s"
    )
    return MISSING_RANK.finding(
        message,
        group=late.group,
        sequence=None if first.p2p_sequence else first.sequence,
        ranks=[*waited, *came],
        culprits=came,
        sides=[
            *(record_side(rank, late.group, late.gave_up[rank], "gave up") for rank in waited[:_SIDES]),
            *(
                record_side(rank, late.group, late.late[rank][0], f"came {_time(late.late[rank][1])} too late")
                for rank in came[:_SIDES]
            ),
        ],
    )


def _time(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.1f} s" if nanoseconds >= 10**8 else f"{nanoseconds / 1e6:.0f} ms"


def _collectives(job: Job) -> Iterator[LateCall]:
    given_up: dict[tuple[Life, int], dict[int, Record]] = {}
    for rank, trace in job.traces.items():
        known, slots = lives(trace), trace.slots
        for row in np.flatnonzero((slots["state"] == State.FAILED) & (slots["p2p_sequence"] == 0)).tolist():
            record = record_at(trace, row)
            if record is not None and _timed_out(job, rank, record):
                life = known[int(slots["group"][row])]
                given_up.setdefault((life, record.sequence), {})[rank] = record
    for (life, sequence), waited in given_up.items():
        group = Group(life[0], "", life[1])
        first = min(waited, key=lambda rank: waited[rank].finished_ns)
        others = {rank: _record(job, rank, life, sequence) for rank in group.ranks if rank not in waited}
        # Ranks that gave up are late themselves if another rank had given up before they came.
        others |= {rank: record for rank, record in waited.items() if rank != first}
        yield from _late(job, _named(job, first, group), waited, first, others)


def _messages(job: Job) -> Iterator[LateCall]:
    for lane in job.matching.lanes:
        if not lane.ordered or not lane.whole:
            continue
        for sent, received in zip(lane.sends.rows.tolist(), lane.receives.rows.tolist(), strict=False):
            ends = {
                lane.sender: record_at(lane.sends.trace, sent),
                lane.receiver: record_at(lane.receives.trace, received),
            }
            for rank, other in ((lane.sender, lane.receiver), (lane.receiver, lane.sender)):
                record = ends[rank]
                if record is not None and record.state is State.FAILED and _timed_out(job, rank, record):
                    yield from _late(job, lane.group, {rank: record}, rank, {other: ends[other]})


def _late(
    job: Job, group: Group, waited: Mapping[int, Record], first: int, others: Mapping[int, Record | None]
) -> Iterator[LateCall]:
    record = waited[first]
    late = {}
    for rank, other in others.items():
        if other is not None and _needs(group, record, first, rank):
            after = other.scheduled_ns - record.finished_ns - _ahead(job, group, rank, first)
            if after > 0 and not _stood(job.traces[rank], other, after, record.finished_ns - record.scheduled_ns):
                late[rank] = other, after
    if late:
        yield LateCall(group, {rank: one for rank, one in waited.items() if rank not in late}, late)


def _needs(group: Group, record: Record, rank: int, other: int) -> bool:
    place, theirs, spec = group.place(rank), group.place(other), COLLECTIVES.get(record.call.op)
    if place is None or theirs is None or spec is None:
        return False
    return spec.kind is Kind.POINT_TO_POINT or spec.needs(record.call, place, theirs)


def _timed_out(job: Job, rank: int, record: Record) -> bool:
    """True if a call failed because its time was up, rather than because a peer was gone."""
    if record.finished_ns <= record.scheduled_ns:
        return False
    for event in job.traces[rank].events:
        here = event.data.get("group") == record.group and number(event, "sequence") == record.sequence
        if here and event.kind == "missing":
            return True
        if here and event.kind == "failed" and text(event, "function") == record.call.op:
            about = text(event, "type"), text(event, "message")
            return nature_of(*about) is not Nature.OWN and _TIMED_OUT.search(about[1]) is not None
    return False


def _record(job: Job, rank: int, life: Life, sequence: int) -> Record | None:
    trace = job.traces.get(rank)
    known = [] if trace is None else lives(trace)
    if trace is None or life not in known:
        return None
    slots = trace.slots
    rows = np.flatnonzero(
        (slots["group"] == known.index(life)) & (slots["sequence"] == sequence) & (slots["p2p_sequence"] == 0)
    )
    return record_at(trace, int(rows[-1])) if len(rows) else None


def _named(job: Job, rank: int, group: Group) -> Group:
    """The group with the description that a rank knows."""
    return next((one for one in job.traces[rank].groups if (one.name, one.ranks) == (group.name, group.ranks)), group)


def _ahead(job: Job, group: Group, rank: int, other: int) -> int:
    """The largest lead (ns) of the clock of ``rank`` over another's that chance does not explain: 0 where the two may
    agree.
    """
    mine, theirs = (_completed(job.traces[one], group) for one in (rank, other))
    bounds = [
        # Both had begun it before either ended it.
        (mine[number][0] - theirs[number][1], mine[number][1] - theirs[number][0])
        for number in sorted(mine.keys() & theirs.keys())[-_COMPARED:]
    ]
    if not bounds:
        return 0
    least, most = max(low for low, _ in bounds), min(high for _, high in bounds)
    return 0 if least <= 0 <= most else most


def _completed(trace: Trace, group: Group) -> dict[int, tuple[int, int]]:
    """The times at which a rank began and ended each completed collective to which all members had to come."""
    slots = trace.slots
    names = [place for place, one in enumerate(trace.groups) if (one.name, one.ranks) == (group.name, group.ranks)]
    rows = np.flatnonzero(
        np.isin(slots["group"], names) & (slots["p2p_sequence"] == 0) & (slots["state"] == State.COMPLETED)
    )[-2 * _COMPARED :]
    found = {}
    for row in rows.tolist():
        record = record_at(trace, row)
        spec = None if record is None else COLLECTIVES.get(record.call.op)
        if record is not None and spec is not None and spec.rooted is None and record.finished_ns:
            found[record.sequence] = record.scheduled_ns, record.finished_ns
    return found


def _stood(trace: Trace, record: Record, after: int, waited: int) -> bool:
    """True if a late rank was in another call when the others gave up, ``after`` nanoseconds before it came.

    Or if it had given up another one itself, in which it had stood for most of the time (ns) that the others waited:
    calls that began together have their timeouts together.
    """
    slots, moment = trace.slots, record.scheduled_ns - after
    begun, ended = (slots[name].astype(np.int64) for name in ("scheduled_ns", "finished_ns"))
    awaited = (slots["flags"] & AWAITED) != 0
    gave_up = (slots["state"] == State.FAILED) & (ended > moment - waited) & (2 * (ended - begun) > waited)
    return bool((awaited & (begun < moment) & ((ended > moment) | gave_up)).any())


def _dead_before(job: Job, late: LateCall) -> bool:
    """True if a member had failed of itself before the first gave up."""
    return any(
        failure.nature is Nature.OWN and failure.noticed_ns < late.since_ns
        for rank, failure in job.failures.items()
        if rank in late.group.ranks
    )
