"""Judges a job: reads and aligns its records, runs the explanations, and makes one report.

:mod:`simcoll.verifier.explanations` has the order in which explanations are believed, docs/verdict.md the steps before
and after.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from simcoll.core.ranges import ranks_text
from simcoll.core.trace import LaunchOutcome, Stall, Trace
from simcoll.verifier.agreement.ddp_models import model_mismatches, without_consequences
from simcoll.verifier.agreement.divergence import with_divergence
from simcoll.verifier.agreement.matched_calls import MatchedCalls
from simcoll.verifier.agreement.mismatches import Mismatch, agreement_of
from simcoll.verifier.agreement.p2p_mismatches import agreed_messages, unequal_messages
from simcoll.verifier.agreement.p2p_races import with_takers
from simcoll.verifier.causes.advise import advise
from simcoll.verifier.causes.facts import JobFacts
from simcoll.verifier.explanations import explained, explained_while_it_runs
from simcoll.verifier.findings.finding import Finding, RankState, RankStatus, Report, Verdict, errors_of
from simcoll.verifier.halts.async_misuse import memory_findings
from simcoll.verifier.halts.broken_ties import with_broken_ties
from simcoll.verifier.halts.failed_calls import as_recorded, when_it_was_ended
from simcoll.verifier.halts.inferred import stall_of_records
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.membership import calls_of_outsiders
from simcoll.verifier.halts.wrong_group import with_wrong_groups
from simcoll.verifier.program_text.one_condition import one_per_condition
from simcoll.verifier.program_text.parting import ran_by, with_partings
from simcoll.verifier.program_text.parting_exceptions import with_partings_of_exceptions
from simcoll.verifier.program_text.parting_messages import with_partings_of_messages
from simcoll.verifier.program_text.unrecorded_texts import with_texts
from simcoll.verifier.values.unchecked import unchecked_notes
from simcoll.verifier.views.call_sites import with_call_sites
from simcoll.verifier.views.notes import notes_of_records, with_unknown
from simcoll.verifier.views.steps import with_steps
from simcoll.verifier.views.summary import summarise

_MOST_NOTES = 20
"""So many notes on damaged records are shown."""


def judge(
    traces: Sequence[Trace],
    outcome: LaunchOutcome | None = None,
    stall: Stall | None = None,
    facts: JobFacts | None = None,
    *,
    folded: bool = True,
    calls: MatchedCalls | None = None,
) -> Report:
    """Judge a job by its ranks' traces (any subset of them) and by how their processes ended, if that is known.

    ``stall`` is the stall for which the job was ended. Where no launcher has seen how the job ended, the records
    themselves may show a stall. With ``facts`` about its hosts the report says who should act on a job that failed.

    Findings come with causes before symptoms, in order of time; a failure that another finding explains is not one.
    Without ``folded`` findings on one condition stay apart, for a caller that chooses among them. ``calls`` are the
    matched ones of these traces, if the caller has them.
    """
    recorded, outcome = when_it_was_ended(traces, outcome, stall)
    traces = recorded
    if outcome is None and stall is None:
        traces, stall = stall_of_records(recorded)
    matched = MatchedCalls.of(traces, calls)
    columns, agreement = matched.columns, agreement_of(traces, matched.columns)
    job = Job.of(traces, outcome, stall, columns, matched.messages)
    models = model_mismatches(traces) if job.tells("parameters") else []
    mismatches = [*without_consequences(agreement.mismatches, models), *_unequal(job)]
    memory = memory_findings(traces) if job.tells("changed", "overlap", "unsound") else []
    job = job.disagreeing([*mismatches, *calls_of_outsiders(job), *memory])
    known = stall is not None or any(trace.groups for trace in traces)
    told = with_texts(with_divergence(explained(job) if known else (), columns), traces)
    ran = ran_by(traces)
    told = with_partings_of_messages(with_partings(told, ran), traces, ran)
    told = with_partings_of_exceptions(told, traces) if job.tells("handling") else told
    told = with_broken_ties(told, traces)
    told = with_takers(with_wrong_groups(with_call_sites(told, traces), traces, ran), traces)
    findings = with_steps(with_unknown(told, traces), traces)
    states = tuple(_state(rank, job, outcome) for rank in sorted({*job.traces, *job.launched}))
    shown = as_recorded(traces, recorded, findings)
    findings = one_per_condition(findings, traces) if folded else findings
    world_size = max([trace.world_size for trace in traces] + [len(job.launched)])
    notes = [*_early_notes(job), *_missing_notes(job, world_size), *_damage_notes(traces)]
    notes += unchecked_notes(traces) if job.tells("unchecked") else []
    return Report(
        _verdict(findings, job),
        world_size,
        traces[0].mode if traces else "",
        findings,
        states,
        agreement.agreed,
        (*notes, *notes_of_records(job, findings)),
        summarise(shown, states, job.failures, stall, world_size, columns) if traces else None,
        messages=agreed_messages(job.matching),
        advice=None if facts is None else advise(job, findings, world_size, facts),
        last=job.last,
    )


def standstill(
    traces: Sequence[Trace], outcome: LaunchOutcome | None, stall: Stall
) -> tuple[tuple[Finding, ...], bool]:
    """The findings that explain why a running job does not move, and True if it is proved that it never will."""
    calls = MatchedCalls.of(traces)
    agreement = agreement_of(traces, calls.columns)
    job = Job.of(traces, outcome, stall, calls.columns, calls.messages)
    findings, proved = explained_while_it_runs(job.disagreeing([*agreement.mismatches, *_unequal(job)]))
    return with_steps(findings, traces), proved


def _unequal(job: Job) -> list[Mismatch]:
    """Messages whose two ends do not fit; Gloo aborts a rank that receives too much."""
    aborted = [rank for rank, one in job.failures.items() if one.exit_code == -signal.SIGABRT]
    return unequal_messages(job.matching, aborted)


def _verdict(findings: Sequence[Finding], job: Job) -> Verdict:
    """Failed: the program failed by itself. Failures that a mismatch or a missing rank explains are findings."""
    codes = {finding.code for finding in findings}
    if "SC701" in codes or (job.failures and not errors_of(findings)):
        return Verdict.FAILED
    return Verdict.FINDINGS if findings else Verdict.OK


def _state(rank: int, job: Job, outcome: LaunchOutcome | None) -> RankState:
    end = None if outcome is None else outcome.ranks.get(rank)
    code = None if end is None else end.exit_code
    stopped = end is not None and end.stopped
    return RankState(rank, _status(rank, job, code, stopped=stopped), code)


def _status(rank: int, job: Job, code: int | None, *, stopped: bool) -> RankStatus:
    if rank in job.failures:
        return RankStatus.FAILED
    if stopped or code == -signal.SIGTERM:
        return RankStatus.STOPPED
    return RankStatus.FINISHED if rank in job.ended or code == 0 else RankStatus.RUNNING


def _early_notes(job: Job) -> list[str]:
    """A failure before any group existed is not a finding on communication, but must be named."""
    if any(trace.groups for trace in job.traces.values()):
        return []
    return [
        f"rank {one.rank} {one.text()}, before any process group existed" for one in list(job.failures.values())[:1]
    ]


def _missing_notes(job: Job, world_size: int) -> list[str]:
    absent = set(range(world_size)) - job.traces.keys()
    return [f"there is no record of {ranks_text(absent)}, which could not be judged"] if job.traces and absent else []


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
