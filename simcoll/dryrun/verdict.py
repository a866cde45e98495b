"""The verdict on a dry run: the disagreements of the ranks' programs, and the calls at which the real run would block.

The programs are replayed together (`simcoll.dryrun.replay`), and every rank's record is truncated where it would block:
as in the records that the real run would leave, calls that would not complete are pending, and last. The records are
judged as those of a real run that was ended there. But a rank that ran alone has recorded its whole program, so that a
skipped call is found from the calls after it, which the real run would never reach.
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
from simcoll.dryrun.endings import (
    Divergence,
    RankEndings,
    among,
    first_divergences,
    guessed_divergences,
    ranks_on_same_branches,
    until_divergence,
)
from simcoll.dryrun.p2p_matching import ANY_SOURCE_SPELLING, never_met
from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.dryrun.records import last_ns
from simcoll.dryrun.replay import BLOCK, LAUNCH, WAIT, ReplayResult, ThreadProgress, replay_programs
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.verifier.agreement.columns import columns_of
from simcoll.verifier.findings.finding import Finding, RankStatus, Report, Severity, errors_of
from simcoll.verifier.findings.rules import (
    CALL_SKIPPED,
    FIELD_RULES,
    LAYOUT_MISMATCH,
    ORDER_SWAPPED,
    RANK_EXITED_EARLY,
    SHAPE_MISMATCH,
    SPLIT_MISMATCH,
)
from simcoll.verifier.postmortem import judge
from simcoll.verifier.program_text.one_condition import one_per_condition
from simcoll.verifier.views.summary import progress_of

_NEVER = np.iinfo(np.int64).max


def with_replay_results(trace: MemoryTrace, replayed: ReplayResult) -> MemoryTrace:
    """The trace with the replay's results: calls that never complete, and the sources of receives from any source."""
    slots = trace.slots.copy()
    pending = ~replayed.done[trace.rank] & (slots["state"] == State.COMPLETED)
    slots["state"][pending], slots["finished_ns"][pending] = State.STARTED, 0
    signatures = list(trace.signatures)
    _name_any_sources(trace.rank, slots, signatures, replayed)
    events = [event for event in trace.events if event.kind != THREAD]
    return replace(trace, slots=slots, signatures=signatures, events=events)


def truncated(trace: MemoryTrace, replayed: ReplayResult) -> MemoryTrace:
    """The trace up to where its rank blocks; unchanged where the rank reaches its end."""
    threads = replayed.threads[trace.rank]
    if all(thread.ended for thread in threads):
        return trace
    slots, main = trace.slots.copy(), threads[0]
    # No record is later than the time at which the main thread blocks.
    stop = _NEVER if main.ended else main.program.times[main.at]
    pending = slots["state"] == State.STARTED
    slots["flags"][pending] &= ~np.uint8(AWAITED)
    for row in blocked_rows(threads, recorded=True):
        slots["flags"][row] |= AWAITED
    made = _launched(threads, len(slots)) | ((slots["state"] == State.REJECTED) & (slots["scheduled_ns"] <= stop))
    events = [event for event in trace.events if event.time_ns <= stop and event.kind != "exit"]
    return replace(trace, slots=slots[made], events=events)


def unfinished_from(trace: MemoryTrace, first: Mapping[tuple[str, tuple[int, ...]], int]) -> MemoryTrace:
    """The trace with collectives pending from a sequence number on, by each group's name and members."""
    slots = trace.slots.copy()
    slots["state"][_from(trace, first)] = State.STARTED
    return replace(trace, slots=slots)


def _from(trace: MemoryTrace, first: Mapping[tuple[str, tuple[int, ...]], int]) -> npt.NDArray[np.bool_]:
    """Mask of a group's collectives from a sequence number on, for each group that has one."""
    slots, mask = trace.slots, np.zeros(len(trace.slots), np.bool_)
    for index, group in enumerate(trace.groups):
        if (number := first.get((group.name, group.ranks))) is not None:
            mask |= (slots["group"] == index) & (slots["p2p_sequence"] == 0) & (slots["sequence"] >= number)
    return mask


def main_thread_is_blocked(threads: Sequence[ThreadProgress]) -> bool:
    """True if a rank's main thread is blocked; where it has ended, another thread is."""
    return not threads[0].ended


def blocked_rows(threads: Sequence[ThreadProgress], *, recorded: bool = False) -> list[int]:
    """The rows of calls in which a rank's threads are blocked; ``recorded`` leaves out waits that no record shows."""
    return [
        thread.program.subjects[thread.at]
        for thread in threads
        if not thread.ended and thread.program.kinds[thread.at] in (BLOCK, WAIT)
        if not recorded or thread.program.times[thread.at] < _NEVER
    ]


def _launched(threads: Sequence[ThreadProgress], count: int) -> npt.NDArray[np.bool_]:
    """Mask of the calls that threads launched before they blocked."""
    made = np.zeros(count, np.bool_)
    for thread in threads:
        upto = thread.at + (not thread.ended)
        kinds = np.array(thread.program.kinds[:upto], np.int64)
        subjects = np.array(thread.program.subjects[:upto], np.int64)
        made[subjects[(kinds == LAUNCH) | (kinds == BLOCK)]] = True
    return made


def _name_any_sources(rank: int, slots: npt.NDArray[Any], signatures: list[Call], replayed: ReplayResult) -> None:
    """Set the source of each receive from any source, in place of the one that the rank guessed alone."""
    spelled = np.array([call.spelling == ANY_SOURCE_SPELLING for call in signatures], np.bool_)
    if not spelled.any():
        return
    known = {call: index for index, call in enumerate(signatures)}
    for row in np.flatnonzero(spelled[slots["signature"]]).tolist():
        source = replayed.taken.get((rank, row), ANY_SOURCE)
        call = replace(signatures[int(slots["signature"][row])], peer=source)
        if call not in known:
            known[call] = len(signatures)
            signatures.append(call)
        slots["signature"][row] = known[call]


_STOPPED = -15

_PROGRAM_RULES = frozenset(
    rule.code for rule in (*FIELD_RULES, SPLIT_MISMATCH, LAYOUT_MISMATCH, SHAPE_MISMATCH, CALL_SKIPPED, ORDER_SWAPPED)
)
"""Rules about the programs themselves: their findings hold whatever happens earlier in a run."""


@dataclass(frozen=True, slots=True)
class DryRunVerdict:
    """The report, where ranks took different branches on guessed values, and the records of the real run.

    ``traces`` end where the real run would block; their times only order each rank's own calls.
    """

    report: Report
    divergences: Sequence[Divergence]
    traces: Sequence[MemoryTrace]


def verdict(ends: RankEndings, world_size: int) -> DryRunVerdict:
    """Judge the ranks that ran, up to where the real run would block.

    Where a disagreement may come from branches taken on guessed values, all ranks are judged up to those branches, and
    beyond them only ranks that took the same branches.
    """
    job = _Replayed.of(ends, world_size)
    report = _judge_replayed(job)
    lines = {line for finding in report.findings for line in guessed_divergences(finding, ends.traces)}
    if not lines:
        return DryRunVerdict(_folded(report, ends), [], job.until_blocked)
    divergences = first_divergences(ends.traces)
    upto = _judge_replayed(_Replayed.of(until_divergence(ends, [times for _, times in divergences]), world_size))
    classes = [ranks for ranks in ranks_on_same_branches(ends.traces) if len(ranks) > 1]
    reports = (upto, *(_judge_replayed(_Replayed.of(among(ends, ranks), world_size)) for ranks in classes))
    found = next((one for one in reports if errors_of(one.findings)), upto)
    return DryRunVerdict(
        _folded(found, ends),
        [divergence for divergence, _ in divergences if divergence.line in lines],
        job.until_blocked,
    )


def _folded(report: Report, ends: RankEndings) -> Report:
    return replace(report, findings=one_per_condition(report.findings, ends.traces))


@dataclass(frozen=True, slots=True)
class _Replayed:
    """Programs replayed together: their ``complete`` records, and those ``until_blocked``: up to where they block."""

    ends: RankEndings
    world_size: int
    replayed: ReplayResult
    complete: list[MemoryTrace]
    until_blocked: list[MemoryTrace]

    @classmethod
    def of(cls, ends: RankEndings, world_size: int) -> _Replayed:
        replayed = replay_programs(ends.traces, world_size, ends.unknown_after)
        complete = [with_replay_results(trace, replayed) for trace in ends.traces]
        until_blocked = [truncated(trace, replayed) for trace in complete] if replayed.blocked else complete
        return cls(ends, world_size, replayed, complete, until_blocked)


def _judge_replayed(job: _Replayed) -> Report:
    ends, complete, until_blocked, world_size = job.ends, job.complete, job.until_blocked, job.world_size
    programs = replace(judge(complete, LaunchOutcome(ends.exits), folded=False), world_size=world_size)
    if not job.replayed.blocked:
        return _without_times(_until_first_error(programs, complete))
    report = replace(_judge_blocked_job(job), world_size=world_size)
    disagreements = [finding for finding in programs.findings if _programs_disagree(finding, until_blocked)]
    if disagreements:
        report = replace(report, findings=tuple(disagreements), verdict=programs.verdict)
    report = _until_first_error(_with_extra_calls(report), until_blocked)
    return _without_times(_blocked_ranks_running(report, job.replayed))


def _until_first_error(report: Report, traces: Sequence[MemoryTrace]) -> Report:
    """The report with agreement and progress up to the first calls that ranks disagree about.

    No group would finish such a call, and no rank would go beyond it.
    """
    first: dict[tuple[str, tuple[int, ...]], int] = {}
    for finding in report.findings:
        group = finding.group
        if finding.severity is Severity.ERROR and group is not None and finding.sequence is not None:
            key = group.name, group.ranks
            first[key] = min(first.get(key, finding.sequence), finding.sequence)
    report = replace(report, agreed=_count_agreed([_cut_at(trace, first) for trace in traces]))
    if not first or report.summary is None:
        return report
    progress = progress_of([unfinished_from(trace, first) for trace in traces])
    return replace(report, summary=replace(report.summary, progress=progress))


def _count_agreed(traces: Sequence[MemoryTrace]) -> int:
    """Returns the number of collectives that all members that ran agree on."""
    run, agreed = {trace.rank for trace in traces}, 0
    for columns in columns_of(traces):
        columns.check()
        agreed += columns.agreed_among(len(run.intersection(columns.group.ranks)))
    return agreed


def _cut_at(trace: MemoryTrace, first: Mapping[tuple[str, tuple[int, ...]], int]) -> MemoryTrace:
    """The trace up to its rank's first collective that is one of these of its group, or a later one."""
    rows = np.flatnonzero(_from(trace, first))
    return replace(trace, slots=trace.slots[: rows[0]]) if len(rows) else trace


def _blocked_ranks_running(report: Report, replayed: ReplayResult) -> Report:
    """The report with blocked ranks as running: no launcher has ended them."""
    blocked = set(replayed.blocked)
    states = tuple(
        replace(state, status=RankStatus.RUNNING, exit_code=None) if state.rank in blocked else state
        for state in report.ranks
    )
    if (summary := report.summary) is None:
        return replace(report, ranks=states)
    places = tuple(
        replace(place, process=RankStatus.RUNNING.value) if blocked.issuperset(place.ranks) else place
        for place in summary.places
    )
    return replace(report, ranks=states, summary=replace(summary, places=places))


def _without_times(report: Report) -> Report:
    """The report without times: ranks that ran one by one share no clock."""
    if (summary := report.summary) is None:
        return report
    places = tuple(replace(place, since_ns=0) for place in summary.places)
    return replace(report, summary=replace(summary, begin_ns=0, end_ns=0, places=places))


def _judge_blocked_job(job: _Replayed) -> Report:
    """Judge the job as one that was ended where its ranks block."""
    ends, replayed = job.ends, job.replayed
    stopped = {
        rank: replace(end, exit_code=_STOPPED, stopped=True)
        for rank, end in ends.exits.items()
        if rank in replayed.blocked
    }
    unknown = {rank: replace(ends.exits[rank], stopped=True) for rank in ends.unknown_after}
    last = max((last_ns(trace) for trace in job.until_blocked), default=1)
    inside_torch = frozenset(rank for rank in replayed.blocked if main_thread_is_blocked(replayed.threads[rank]))
    # A rank that would have gone on may not be late, like one that still connects.
    late = ends.unknown_after - set(replayed.blocked)
    stall = Stall(last, last, blocked=inside_torch, connecting=late, never_met=_never_met(job.complete, replayed))
    return judge(job.until_blocked, LaunchOutcome({**ends.exits, **unknown, **stopped}), stall, folded=False)


def _never_met(complete: Sequence[MemoryTrace], replayed: ReplayResult) -> frozenset[tuple[int, str, int]]:
    """The messages that ranks wait for and whose other end is in no program."""
    traces = {trace.rank: trace for trace in complete}
    waiting = [
        (rank, row)
        for rank in replayed.blocked
        for row in blocked_rows(replayed.threads[rank])
        if traces[rank].slots["p2p_sequence"][row] and (rank, row) not in replayed.pairs
    ]
    return frozenset(
        (rank, trace.groups[int(trace.slots["group"][row])].name, int(trace.slots["p2p_sequence"][row]))
        for rank, row in never_met(traces, waiting)
        for trace in (traces[rank],)
    )


def _programs_disagree(finding: Finding, until_blocked: Sequence[MemoryTrace]) -> bool:
    """True if the programs disagree about a call that the real run reaches on some rank."""
    if finding.severity is not Severity.ERROR or finding.code not in _PROGRAM_RULES:
        return False
    group = finding.group
    return group is None or any(
        count >= (finding.sequence or 0)
        for trace in until_blocked
        for (name, members, _), count in reached(trace).items()
        if (name, members) == (group.name, group.ranks)
    )


def _with_extra_calls(report: Report) -> Report:
    """SC202 in place of SC702 where most of a group's ranks have ended: the others made an extra call."""
    return replace(report, findings=tuple(_with_extra_call(finding) for finding in report.findings))


def _with_extra_call(finding: Finding) -> Finding:
    went_on = set(finding.culprits)
    if finding.code != RANK_EXITED_EARLY.code or not went_on.issuperset(finding.sides[0].ranks):
        return finding
    ended, message = set(finding.ranks) - went_on, finding.message
    # Of two, the one that is missing elsewhere is wrong.
    if len(ended) > len(went_on):
        message = (
            f"{ranks_text(went_on)} made collective {finding.sequence}, which "
            f"{ranks_text(ended)}, the majority, ended without"
        )
    return replace(finding, code=CALL_SKIPPED.code, message=message)
