"""The verdict on a job that has ended: traces and the launcher's account in, one report out."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Record, State
from simcoll.core.trace import LaunchOutcome, Stall, Trace, record_at
from simcoll.errors import CANNOT_START, FINDINGS, OK
from simcoll.verifier.agreement.ddp_models import model_mismatches, without_consequences
from simcoll.verifier.agreement.divergence import with_came_apart
from simcoll.verifier.agreement.mismatches import Mismatch, agreement_of
from simcoll.verifier.agreement.p2p_matching import Matching, match_messages
from simcoll.verifier.agreement.p2p_mismatches import agreed_messages, unequal_messages
from simcoll.verifier.findings.device_queue import open_rows
from simcoll.verifier.findings.failures import Failure, failures_of
from simcoll.verifier.findings.finding import Finding, RankState, RankStatus, Report, Severity, Verdict
from simcoll.verifier.findings.rules_order import MISSING_RANK
from simcoll.verifier.halts.async_misuse import memory_findings, never_waited
from simcoll.verifier.halts.at_the_end import when_it_was_ended
from simcoll.verifier.halts.diagnosis import deadlock, halt_findings, is_final
from simcoll.verifier.halts.failed_calls import as_stated
from simcoll.verifier.halts.group_creation import membership_mismatches
from simcoll.verifier.halts.incidents import (
    Job,
    first_failure,
    last_record,
    own_failure,
    refused_instead,
    refused_on_some,
)
from simcoll.verifier.halts.inferred import told_by_records
from simcoll.verifier.halts.missing import missing_ranks
from simcoll.verifier.halts.nonmembers import calls_of_outsiders, explained_by_outsiders
from simcoll.verifier.halts.p2p_lost import lost_messages, swallowed_messages
from simcoll.verifier.halts.p2p_unmatched import unmatched_messages
from simcoll.verifier.halts.stragglers import stragglers
from simcoll.verifier.views.notes import notes_of_records, with_unknown
from simcoll.verifier.views.summary import summarise

_HOLDING_NOBODY_UP = ("SC502", "SC503")
_MOST_NOTES = 20
"""So many notes on damaged records are shown."""


def judge(traces: Sequence[Trace], outcome: LaunchOutcome | None = None, stall: Stall | None = None) -> Report:
    """Judge a job by its ranks' traces (any subset of them) and by how their processes ended, if that is known.

    ``stall`` says that the job stood still when it was ended. Where nobody has seen how the job ended, the records
    themselves may tell that it stood.

    Findings come with causes before symptoms, in order of time; a failure that another finding explains is none.
    """
    traces, outcome = when_it_was_ended(traces, outcome, stall)
    stated = traces
    if outcome is None and stall is None:
        traces, stall = told_by_records(traces)
    columns, agreement = agreement_of(traces)
    matching = match_messages(traces)
    job = _job(traces, outcome)
    mismatches = [*without_consequences(agreement.mismatches, model_mismatches(traces))]
    mismatches += _unequal(matching, job.failures)
    outsiders = calls_of_outsiders(_parted(job, mismatches))
    mismatches = sorted([*mismatches, *outsiders, *memory_findings(traces)], key=_when)
    job = _parted(job, mismatches)
    known = stall is not None or any(trace.groups for trace in traces)
    findings = _findings(job, mismatches, matching, outsiders, stall) if known else ()
    findings = with_came_apart(findings, columns)
    findings += tuple(stragglers(columns))
    findings = with_unknown(findings, traces)
    notes = [*_early_notes(job, traces), *_missing_notes(traces, outcome), *_damage_notes(traces)]
    notes += notes_of_records(job, stall, findings, matching)
    world_size = _world_size(traces, outcome)
    shown = as_stated(traces, stated, findings)
    states = tuple(_state(rank, job, outcome) for rank in _ranks(traces, outcome))
    return Report(
        _verdict(findings, job),
        world_size,
        traces[0].mode if traces else "",
        findings,
        states,
        agreement.agreed,
        tuple(notes),
        summarise(shown, states, job.failures, stall, world_size, columns) if traces else None,
        messages=agreed_messages(matching),
    )


def standstill(
    traces: Sequence[Trace], outcome: LaunchOutcome | None, stall: Stall
) -> tuple[tuple[Finding, ...], bool]:
    """Why a job that still runs does not move, and whether it is proved that it never will.

    Proved is a cycle of waits, a wait for a rank that has ended, a group that the ranks make differently, and a
    collective that disagrees and does not end. A rank that is only late, to a call or to the making of a group, may
    still come.
    """
    _, agreement = agreement_of(traces)
    matching = match_messages(traces)
    job = _job(traces, outcome)
    job = _parted(job, [*agreement.mismatches, *_unequal(matching, job.failures)])
    stuck = [one.finding for one in job.mismatches if _unfinished(job, one.finding)]
    stuck += [one for one in unmatched_messages(job, matching.unmatched, stall) if one.severity is Severity.ERROR]
    stuck += lost_messages(job, matching.lanes)
    if stuck:
        return tuple(stuck), True
    findings = halt_findings(job, stall, matching.unmatched)
    return tuple(findings), any(is_final(job, stall, finding, matching.unmatched) for finding in findings)


def _unfinished(job: Job, finding: Finding) -> bool:
    """Whether a rank still sits in the collective that a finding is about, or its device does."""
    place = None if finding.group is None else (finding.group.name, finding.sequence)
    return any(
        (record.group, record.sequence) == place and record.state in (State.SCHEDULED, State.STARTED)
        for rank in finding.ranks
        if rank in job.last
        for record in (job.last[rank], *_queued_at(job.traces[rank], finding.sequence))
    )


def _queued_at(trace: Trace, sequence: int | None) -> list[Record]:
    """The calls of a number that a device has not ended, of whatever groups."""
    rows = open_rows(trace)
    mine = rows[trace.slots["sequence"][rows] == (sequence or 0)]
    return [record for row in mine.tolist() if (record := record_at(trace, row)) is not None]


def exit_code(report: Report) -> int:
    """3 for findings of severity error, 1 for a job that failed before any group existed, otherwise 0."""
    if any(finding.severity is Severity.ERROR for finding in report.findings):
        return FINDINGS
    return CANNOT_START if report.verdict is Verdict.FAILED else OK


def _job(traces: Sequence[Trace], outcome: LaunchOutcome | None) -> Job:
    """What became of the ranks; :func:`_parted` adds what they disagree about."""
    failures = failures_of(traces, outcome)
    by_rank = {trace.rank: trace for trace in traces}
    last = {rank: record for rank, trace in by_rank.items() if (record := last_record(trace)) is not None}
    ended = {rank: time for rank, trace in by_rank.items() if (time := _ended(trace, failures, outcome)) is not None}
    launched = frozenset(() if outcome is None else outcome.ranks)
    return Job(by_rank, failures, (), last, ended, not failures and set(by_rank) == set(ended), launched)


def _parted(job: Job, mismatches: Sequence[Mismatch]) -> Job:
    errors = (one for one in mismatches if one.finding.severity is Severity.ERROR)
    return replace(job, mismatches=sorted(errors, key=_when))


def _when(mismatch: Mismatch) -> int:
    return mismatch.time_ns


def _unequal(matching: Matching, failures: Mapping[int, Failure]) -> list[Mismatch]:
    """Messages whose two ends do not fit; Gloo aborts a rank that receives too much."""
    return unequal_messages(matching, [rank for rank, one in failures.items() if one.exit_code == -signal.SIGABRT])


def _ended(trace: Trace, failures: Mapping[int, Failure], outcome: LaunchOutcome | None) -> int | None:
    """When a rank ended well by itself; None where it did not, or where it is not known."""
    end = None if outcome is None else outcome.ranks.get(trace.rank)
    exits: list[Event] = [event for event in trace.events if event.kind == "exit"]
    if trace.rank in failures:
        return None
    if end is not None and end.stopped:
        # The launcher stops who is left after a failure: also a rank that was at its own end by then.
        first = min((failure.time_ns for failure in failures.values()), default=0)
        return exits[-1].time_ns if exits and exits[-1].time_ns < first else None
    if end is not None and end.exit_code != 0:
        return None
    if exits:
        return exits[-1].time_ns
    return None if end is None else end.time_ns


def _findings(
    job: Job,
    mismatches: Sequence[Mismatch],
    matching: Matching,
    outsiders: Sequence[Mismatch],
    stall: Stall | None,
) -> tuple[Finding, ...]:
    messages = [*lost_messages(job, matching.lanes), *unmatched_messages(job, matching.unmatched, stall)]
    stuck = [finding for finding in messages if finding.severity is Severity.ERROR]
    waiting = {rank for finding in stuck for rank in finding.ranks}
    missing = [
        finding
        for finding in missing_ranks(job)
        if not waiting & set(finding.culprits) and not explained_by_outsiders(finding, outsiders)
    ]
    refused = refused_on_some(job)
    for finding in missing if not refused else ():
        refused = refused_instead(job, finding)
    missing = [] if refused and not job.clean else missing
    if missing and not job.mismatches and (knot := deadlock(job, matching.unmatched, missing)):
        missing = knot
    explained = bool(missing) or bool(stuck) or any(finding.severity is Severity.ERROR for finding in refused)
    # Buffers that were used too early make no rank wait.
    apart = [one for one in job.mismatches if one.finding.code not in _HOLDING_NOBODY_UP]
    open_question = not explained and not apart and own_failure(job) is None
    halted = halt_findings(job, stall, matching.unmatched) if open_question else []
    if open_question and not any(finding.culprits or finding.code != MISSING_RANK.code for finding in halted):
        halted = swallowed_messages(job, matching.lanes, stall) or halted
    membership = [] if halted or apart else membership_mismatches(job)
    # Ranks that talk past each other do not meet in a call either.
    missing = [one for one in missing if not any(set(one.ranks) & set(parted.ranks) for parted in membership)]
    failed = first_failure(job, explained or bool(halted or membership))
    errors = [mismatch.finding for mismatch in job.mismatches]
    warnings = [one.finding for one in mismatches if one.finding.severity is Severity.WARNING]
    warnings += [finding for finding in messages if finding.severity is Severity.WARNING]
    warnings += never_waited(list(job.traces.values()), matching.unmatched) if job.clean and not errors else []
    # A failure that no mismatch explains and that came first is the cause of what the others report.
    first = failed if _came_first(job, failed) else []
    rest = [finding for finding in failed if finding not in first]
    return (*first, *errors, *membership, *refused, *stuck, *missing, *halted, *rest, *warnings)


def _came_first(job: Job, failed: Sequence[Finding]) -> bool:
    if not failed or not job.mismatches:
        return bool(failed)
    return job.failures[failed[0].ranks[0]].time_ns < job.mismatches[0].time_ns


def _verdict(findings: Sequence[Finding], job: Job) -> Verdict:
    """Failed: the program failed by itself. Failures that a mismatch or a missing rank explains are findings."""
    codes = {finding.code for finding in findings}
    if "SC701" in codes or (job.failures and not any(one.severity is Severity.ERROR for one in findings)):
        return Verdict.FAILED
    return Verdict.FINDINGS if findings else Verdict.OK


def _state(rank: int, job: Job, outcome: LaunchOutcome | None) -> RankState:
    end = None if outcome is None else outcome.ranks.get(rank)
    code = None if end is None else end.exit_code
    stopped = end is not None and end.stopped
    return RankState(rank, _status(rank, job, code, stopped=stopped), code, job.last.get(rank))


def _status(rank: int, job: Job, code: int | None, *, stopped: bool) -> RankStatus:
    if rank in job.failures:
        return RankStatus.FAILED
    if stopped or code == -signal.SIGTERM:
        return RankStatus.STOPPED
    return RankStatus.FINISHED if rank in job.ended or code == 0 else RankStatus.RUNNING


def _ranks(traces: Sequence[Trace], outcome: LaunchOutcome | None) -> list[int]:
    return sorted({trace.rank for trace in traces} | set(() if outcome is None else outcome.ranks))


def _world_size(traces: Sequence[Trace], outcome: LaunchOutcome | None) -> int:
    return max([trace.world_size for trace in traces] + [0 if outcome is None else len(outcome.ranks)])


def _early_notes(job: Job, traces: Sequence[Trace]) -> list[str]:
    """A failure before any group existed is not a finding on communication, but must be named."""
    if any(trace.groups for trace in traces):
        return []
    return [
        f"rank {one.rank} {one.text()}, before any process group existed" for one in list(job.failures.values())[:1]
    ]


def _missing_notes(traces: Sequence[Trace], outcome: LaunchOutcome | None) -> list[str]:
    if not traces:
        return []
    absent = set(range(_world_size(traces, outcome))) - {trace.rank for trace in traces}
    return [f"there is no record of {ranks_text(absent)}, which could not be judged"] if absent else []


def _damage_notes(traces: Sequence[Trace]) -> list[str]:
    by_problem: dict[str, list[int]] = {}
    for trace in traces:
        for problem in trace.problems:
            by_problem.setdefault(problem, []).append(trace.rank)
    notes = [f"{ranks_text(ranks)}: {problem}" for problem, ranks in by_problem.items()]
    if len(notes) > _MOST_NOTES:
        notes[_MOST_NOTES:] = [f"{len(notes) - _MOST_NOTES} more notes on damaged or incomplete records are left out"]
    if wrapped := [trace.rank for trace in traces if trace.dropped]:
        notes.append(f"the oldest records of {ranks_text(wrapped)} were overwritten and not judged")
    return notes
