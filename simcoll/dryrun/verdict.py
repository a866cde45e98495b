"""The verdict on a dry run: what the ranks' programs disagree about, and where the real run would stand.

The programs are replayed together (`simcoll.dryrun.replay`), every rank's record is cut where it would stand, and the
records are judged as those of a real run that was ended there. A rank alone, though, has told all of its program: that
one skips a call is seen by what comes after, also where the real run would never come to that.

The records of a dry run as those of the real run would be: calls that do not end are pending, and last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.ranges import ranks_text
from simcoll.core.record import State
from simcoll.core.trace import AWAITED, LaunchOutcome, MemoryTrace, Stall, reached
from simcoll.dryrun.divergence import Parting, first_partings, may_be_guessed, same_ways
from simcoll.dryrun.endings import Ends, among, before
from simcoll.dryrun.p2p_matching import ANY_SOURCE_SPELLING, never_met
from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.dryrun.records import last_ns
from simcoll.dryrun.replay import BLOCK, COME, WAIT, Standing, StrandProgress, replay_alone
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.verifier.agreement.columns import columns_of
from simcoll.verifier.findings.finding import Finding, RankStatus, Report, Severity
from simcoll.verifier.findings.rules_fields import FIELD_RULES, LAYOUT_MISMATCH, SHAPE_MISMATCH, SPLIT_MISMATCH
from simcoll.verifier.findings.rules_job import RANK_EXITED_EARLY
from simcoll.verifier.findings.rules_order import CALL_SKIPPED, ORDER_SWAPPED
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.progress import progress_of

_NEVER = np.iinfo(np.int64).max


def settled(trace: MemoryTrace, standing: Standing) -> MemoryTrace:
    """The trace with what the replay found out: which calls end at all, and whose messages were taken."""
    slots = trace.slots.copy()
    pending = ~standing.done[trace.rank] & (slots["state"] == State.COMPLETED)
    slots["state"][pending], slots["finished_ns"][pending] = State.STARTED, 0
    signatures = list(trace.signatures)
    _name_sources(trace.rank, slots, signatures, standing)
    events = [event for event in trace.events if event.kind != THREAD]
    return replace(trace, slots=slots, signatures=signatures, events=events)


def cut(trace: MemoryTrace, standing: Standing) -> MemoryTrace:
    """A settled trace up to where its rank stands; as it is where the rank comes to its end."""
    courses = standing.courses[trace.rank]
    if all(course.ended for course in courses):
        return trace
    slots, stop = trace.slots.copy(), _stop(courses[0])
    pending = slots["state"] == State.STARTED
    slots["flags"][pending] &= ~np.uint8(AWAITED)
    for row in _stands_at(courses, seen=True):
        slots["flags"][row] |= AWAITED
    made = _made(courses, len(slots)) | ((slots["state"] == State.REJECTED) & (slots["scheduled_ns"] <= stop))
    events = [event for event in trace.events if event.time_ns <= stop and event.kind != "exit"]
    return replace(trace, slots=slots[made], events=events)


def unfinished_from(trace: MemoryTrace, first: Mapping[tuple[str, tuple[int, ...]], int]) -> MemoryTrace:
    """The trace with a group's collectives pending from a number on; groups go by name and members."""
    slots = trace.slots.copy()
    for index, group in enumerate(trace.groups):
        if (number := first.get((group.name, group.ranks))) is not None:
            later = (slots["group"] == index) & (slots["p2p_sequence"] == 0) & (slots["sequence"] >= number)
            slots["state"][later] = State.STARTED
    return replace(trace, slots=slots)


def stands_inside(courses: Sequence[StrandProgress]) -> bool:
    """Whether a rank's main thread stands in torch; where it has ended, another thread does."""
    return not courses[0].ended


def stands_in(courses: Sequence[StrandProgress]) -> list[int]:
    """The rows of the calls in which a rank's threads stand."""
    return _stands_at(courses, seen=False)


def _stop(main: StrandProgress) -> int:
    """When the main thread stands: nothing comes after that."""
    return _NEVER if main.ended else main.strand.times[main.at]


def _stands_at(courses: Sequence[StrandProgress], *, seen: bool) -> list[int]:
    """The rows in which strands stand; ``seen`` leaves out waits that no record shows."""
    return [
        course.strand.subjects[course.at]
        for course in courses
        if not course.ended and course.strand.kinds[course.at] in (BLOCK, WAIT)
        if not seen or course.strand.times[course.at] < _NEVER
    ]


def _made(courses: Sequence[StrandProgress], count: int) -> npt.NDArray[np.bool_]:
    """The calls that strands came to before they stood."""
    made = np.zeros(count, np.bool_)
    for course in courses:
        upto = course.at + (not course.ended)
        kinds = np.array(course.strand.kinds[:upto], np.int64)
        subjects = np.array(course.strand.subjects[:upto], np.int64)
        made[subjects[(kinds == COME) | (kinds == BLOCK)]] = True
    return made


def _name_sources(rank: int, slots: npt.NDArray[Any], signatures: list[Call], standing: Standing) -> None:
    """Write down whose messages receives from any source took, in place of what the rank guessed alone."""
    spelled = np.array([call.spelling == ANY_SOURCE_SPELLING for call in signatures], np.bool_)
    if not spelled.any():
        return
    known = {call: index for index, call in enumerate(signatures)}
    for row in np.flatnonzero(spelled[slots["signature"]]).tolist():
        source = standing.taken.get((rank, row), ANY_SOURCE)
        call = replace(signatures[int(slots["signature"][row])], peer=source)
        if call not in known:
            known[call] = len(signatures)
            signatures.append(call)
        slots["signature"][row] = known[call]


_STOPPED = -15

_OF_PROGRAMS = frozenset(
    rule.code for rule in (*FIELD_RULES, SPLIT_MISMATCH, LAYOUT_MISMATCH, SHAPE_MISMATCH, CALL_SKIPPED, ORDER_SWAPPED)
)
"""What holds of the programs themselves, whatever comes before in a run."""


@dataclass(frozen=True, slots=True)
class DryRunVerdict:
    """On a dry run: the report, where ranks went different ways on guesses, and the records of the real run.

    ``traces`` end where the real run would stand; their times are each rank's own order.
    """

    report: Report
    partings: Sequence[Parting]
    traces: Sequence[MemoryTrace]


def verdict(ends: Ends, world_size: int) -> DryRunVerdict:
    """Judge the ranks that ran, up to where the real run would stand.

    Where ranks may disagree because of the ways they went on guesses, they are judged up to there, and beyond that each
    with those that went as it did.
    """
    played = _Played.of(ends, world_size)
    report = _judged(played)
    lines = {line for finding in report.findings for line in may_be_guessed(finding, ends.traces)}
    if not lines:
        return DryRunVerdict(report, [], played.here)
    partings = first_partings(ends.traces)
    upto = _judged(_Played.of(before(ends, [times for _, times in partings]), world_size))
    classes = [ranks for ranks in same_ways(ends.traces) if len(ranks) > 1]
    reports = (upto, *(_judged(_Played.of(among(ends, ranks), world_size)) for ranks in classes))
    found = next((one for one in reports if any(finding.severity is Severity.ERROR for finding in one.findings)), upto)
    return DryRunVerdict(found, [parting for parting, _ in partings if parting.line in lines], played.here)


@dataclass(frozen=True, slots=True)
class _Played:
    """The programs played together: their ``whole`` records, and those up to ``here``, where the run would stand."""

    ends: Ends
    world_size: int
    standing: Standing
    whole: list[MemoryTrace]
    here: list[MemoryTrace]

    @classmethod
    def of(cls, ends: Ends, world_size: int) -> _Played:
        standing = replay_alone(ends.traces, world_size, ends.unknown_after)
        whole = [settled(trace, standing) for trace in ends.traces]
        here = [cut(trace, standing) for trace in whole] if standing.stuck else whole
        return cls(ends, world_size, standing, whole, here)


def _judged(played: _Played) -> Report:
    ends, whole, here, world_size = played.ends, played.whole, played.here, played.world_size
    programs = replace(judge(whole, LaunchOutcome(ends.exits)), agreed=_agreed(whole), world_size=world_size)
    if not played.standing.stuck:
        return _timeless(_up_to_the_first_error(programs, whole))
    report = replace(_where_it_stands(played), agreed=_agreed(here), world_size=world_size)
    apart = [finding for finding in programs.findings if _is_of_programs(finding, here)]
    if apart:
        report = replace(report, findings=tuple(apart), verdict=programs.verdict, agreed=programs.agreed)
    report = _up_to_the_first_error(_by_majority(report), here)
    return _timeless(_as_it_ended(report, played.standing))


def _agreed(traces: Sequence[MemoryTrace]) -> int:
    """The collectives on which all members that ran agree."""
    run, agreed = {trace.rank for trace in traces}, 0
    for columns in columns_of(traces):
        columns.check()
        agreed += columns.agreed_among(len(run.intersection(columns.group.ranks)))
    return agreed


def _up_to_the_first_error(report: Report, traces: Sequence[MemoryTrace]) -> Report:
    """No group finishes the call about which its ranks disagree: alone each rank has gone on, as it would not there."""
    first: dict[tuple[str, tuple[int, ...]], int] = {}
    for finding in report.findings:
        group = finding.group
        if finding.severity is Severity.ERROR and group is not None and finding.sequence is not None:
            key = group.name, group.ranks
            first[key] = min(first.get(key, finding.sequence), finding.sequence)
    if not first or report.summary is None:
        return report
    progress = progress_of([unfinished_from(trace, first) for trace in traces])
    return replace(report, summary=replace(report.summary, progress=progress))


def _as_it_ended(report: Report, standing: Standing) -> Report:
    """No launcher has ended the ranks that stand: they would stand still."""
    stuck = set(standing.stuck)
    states = tuple(
        replace(state, status=RankStatus.RUNNING, exit_code=None) if state.rank in stuck else state
        for state in report.ranks
    )
    if (summary := report.summary) is None:
        return replace(report, ranks=states)
    places = tuple(
        replace(place, process=RankStatus.RUNNING.value) if stuck.issuperset(place.ranks) else place
        for place in summary.places
    )
    return replace(report, ranks=states, summary=replace(summary, places=places))


def _timeless(report: Report) -> Report:
    """Ranks that ran one by one share no clock."""
    if (summary := report.summary) is None:
        return report
    places = tuple(replace(place, since_ns=0) for place in summary.places)
    return replace(report, summary=replace(summary, begin_ns=0, end_ns=0, places=places))


def _where_it_stands(played: _Played) -> Report:
    """The verdict on a job that was ended where it stands."""
    ends, standing = played.ends, played.standing
    stopped = {
        rank: replace(end, exit_code=_STOPPED, stopped=True)
        for rank, end in ends.exits.items()
        if rank in standing.stuck
    }
    unknown = {rank: replace(ends.exits[rank], stopped=True) for rank in ends.unknown_after}
    last = max((last_ns(trace) for trace in played.here), default=1)
    blocked = frozenset(rank for rank in standing.stuck if stands_inside(standing.courses[rank]))
    # Of a rank that would have gone on it is not known that it is late, as of one that still connects.
    late = ends.unknown_after - set(standing.stuck)
    stall = Stall(last, last, blocked=blocked, connecting=late, never_met=_never_met(played.whole, standing))
    return judge(played.here, LaunchOutcome({**ends.exits, **unknown, **stopped}), stall)


def _never_met(whole: Sequence[MemoryTrace], standing: Standing) -> frozenset[tuple[int, str, int]]:
    """The messages for which ranks wait that no program has the other end of."""
    traces = {trace.rank: trace for trace in whole}
    waiting = [
        (rank, row)
        for rank in standing.stuck
        for row in stands_in(standing.courses[rank])
        if traces[rank].slots["p2p_sequence"][row] and (rank, row) not in standing.pairs
    ]
    return frozenset(
        (rank, trace.groups[int(trace.slots["group"][row])].name, int(trace.slots["p2p_sequence"][row]))
        for rank, row in never_met(traces, waiting)
        for trace in (traces[rank],)
    )


def _is_of_programs(finding: Finding, here: Sequence[MemoryTrace]) -> bool:
    """Whether the programs disagree, about a call to which the real run comes on any rank."""
    if finding.severity is not Severity.ERROR or finding.code not in _OF_PROGRAMS:
        return False
    group = finding.group
    return group is None or any(
        count >= (finding.sequence or 0)
        for trace in here
        for (name, members, _), count in reached(trace).items()
        if (name, members) == (group.name, group.ranks)
    )


def _by_majority(report: Report) -> Report:
    """SC202 in the place of SC702 where most of a group's ranks have ended: the others made a call too many."""
    return replace(report, findings=tuple(_of_majority(finding) for finding in report.findings))


def _of_majority(finding: Finding) -> Finding:
    went_on = set(finding.culprits)
    if finding.code != RANK_EXITED_EARLY.code or not went_on.issuperset(finding.sides[0].ranks):
        return finding
    message = (
        f"{ranks_text(went_on)} made collective {finding.sequence}, which "
        f"{ranks_text(set(finding.ranks) - went_on)}, the majority, ended without"
    )
    return replace(finding, code=CALL_SKIPPED.code, message=message)
