"""The report on a dry run: the verdict, the part of the programs that it covers, and notes on guesses.

A dry run makes it of its own records, and `simcoll verify` of those that it finds with their account.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Source, number, source_of
from simcoll.core.trace import Trace
from simcoll.dryrun.account import Account
from simcoll.dryrun.endings import ProcessEnd, RankEnding, RankEndings, endings_of
from simcoll.dryrun.rank.event_kinds import OTHER_JOB
from simcoll.dryrun.rank.settings import log_name
from simcoll.dryrun.records import comparable, sized_differently, tainted_reads
from simcoll.dryrun.verdict import DryRunVerdict, verdict
from simcoll.verifier.findings.finding import DRY_RUN, Coverage, Report

NO_RECORD = "left no record"
"""What is said of ranks that never created a group."""

_COMMANDS = "if the script starts its ranks as commands (subprocess, torchrun), give the script that those run"

_BEYOND = ": nothing is known beyond that"
_OTHERS = "nothing is said of the others"
_MOST_LINES = 10
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class JudgedDryRun:
    """The records of a dry run, the ends of its ranks, and the verdict on both."""

    recorded: Sequence[Trace]
    endings: RankEndings
    verdict: DryRunVerdict


def judge_dry_run(traces: Sequence[Trace], ends: Mapping[int, ProcessEnd], world_size: int) -> JudgedDryRun:
    """Judge the ranks that ran by their records and the ends of their processes."""
    endings = endings_of(traces, comparable(traces), ends)
    return JudgedDryRun(traces, endings, verdict(endings, world_size))


def report_of(judged: JudgedDryRun, account: Account, folder: Path) -> Report:
    """The report; ``folder`` holds the ranks' output."""
    report = judged.verdict.report
    diverged = [divergence.note() for divergence in judged.verdict.divergences]
    kept = [note for note in report.notes if not note.startswith("there is no record of")]
    return replace(
        report,
        mode=DRY_RUN,
        world_size=account.world_size,
        notes=(*_notes(judged, account, folder), *account.passes, *diverged, *kept),
        coverage=_coverage(judged),
    )


def _coverage(judged: JudgedDryRun) -> Coverage:
    """The gaps in the verdict: ranks not followed to the end of their programs, and calls that were not compared."""
    ends = judged.endings
    short = [
        *((ends.ranks(how), text) for how, text in _CUT_SHORT.items()),
        (_without_record(judged), NO_RECORD),
    ]
    cut = {rank for ranks, _ in short for rank in ranks}
    gaps = [f"{ranks_text(ranks)} {text}" for ranks, text in short if ranks]
    for one in judged.verdict.divergences:
        cut |= {*one.most, *one.others}
        gaps.append(f"{ranks_text(one.most)} and {ranks_text(one.others)} went different ways on a guessed value")
    for source, size, ranks in _other_jobs(judged.recorded):
        cut |= set(ranks)
        gaps.append(f"the job of {size:,} ranks that {source.file}:{source.line} starts was left out")
    if sized_differently(judged.recorded):
        gaps.append("sizes that rest on guessed values were not compared")
    return Coverage(len(ends.how), len(ends.how) - len(cut), tuple(gaps))


_CUT_SHORT = {
    RankEnding.GUESSED: "failed on guessed values",
    RankEnding.TIMED_OUT: "reached the time limit",
    RankEnding.OUT_OF_MEMORY: "ran out of memory",
}


def _notes(judged: JudgedDryRun, account: Account, folder: Path) -> Iterator[str]:
    yield from _ranks_and_endings(judged.endings, account, folder)
    yield from _fake_gpus(judged.recorded, account)
    if unrecorded := _without_record(judged):
        wrote = f"what rank {unrecorded[0]} wrote is in {folder / log_name(unrecorded[0])}"
        yield f"{ranks_text(unrecorded)} made no process group that could be recorded; {wrote}; {_COMMANDS}"
    for source, size, _ in _other_jobs(judged.recorded):
        advice = f"--world-size {size} would follow jobs of that size"
        yield f"{source.file}:{source.line} starts another job, of {size:,} ranks, which was left out: {advice}"
    yield from _guessed(judged.recorded)
    yield from _not_compared(judged.recorded)


def _ranks_and_endings(ends: RankEndings, account: Account, folder: Path) -> Iterator[str]:
    if len(ends.how) < account.world_size:
        run = [*ends.how]
        yield f"{ranks_text(run)} of {account.world_size:,} {verb(run, 'was', 'were')} run; {_OTHERS}"
    if timed_out := ends.ranks(RankEnding.TIMED_OUT):
        yield f"{ranks_text(timed_out)} ran for {account.timeout:g} s and did not end (--timeout){_BEYOND}"
        yield from _places(timed_out, account)
    if killed := ends.ranks(RankEnding.OUT_OF_MEMORY):
        limit = "" if account.memory is None else f" (--memory allows {account.memory / _GIB:g} GiB of address space)"
        who = f"{ranks_text(killed)} {verb(killed, 'was', 'were')}"
        yield f"{who} ended for want of memory{limit}{_BEYOND}; give more, or --fake-tensors"
    if stopped := ends.ranks(RankEnding.STEPS_DONE):
        yield f"{ranks_text(stopped)} {verb(stopped, 'was', 'were')} ended after {account.steps} steps (--steps)"
    if guessed := ends.ranks(RankEnding.GUESSED):
        yield f"{ranks_text(guessed)} failed on values from other ranks, which a dry run can only guess{_BEYOND}"
    if failed := [*ends.ranks(RankEnding.FAILED), *guessed, *killed]:
        yield f"what rank {failed[0]} wrote is in {folder / log_name(failed[0])}"


def _places(ranks: Sequence[int], account: Account) -> Iterator[str]:
    """Notes on the lines at which ranks were when their time was over."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        if place := account.ends[rank].place:
            places.setdefault(place, []).append(rank)
    for place, there in list(places.items())[:_MOST_LINES]:
        yield f"{place}: {ranks_text(there)} {verb(there, 'was', 'were')} here when the time was over"
    if len(places) > _MOST_LINES:
        yield f"others were at {len(places) - _MOST_LINES} more lines"


def _without_record(judged: JudgedDryRun) -> list[int]:
    """The ranks that ended well without a record."""
    known = {trace.rank for trace in judged.recorded}
    return [rank for rank in judged.endings.ranks(RankEnding.FINISHED) if rank not in known]


def _other_jobs(traces: Sequence[Trace]) -> list[tuple[Source, int, list[int]]]:
    """The lines at which scripts started jobs of another size, that size, and the ranks of the dry run there."""
    found: dict[tuple[Source, int], list[int]] = {}
    for trace in traces:
        for event in trace.events:
            if event.kind == OTHER_JOB:
                source = replace(source_of(event.data), function="")
                found.setdefault((source, number(event, "size") or 0), []).append(trace.rank)
    return [(source, size, ranks) for (source, size), ranks in found.items()]


def _fake_gpus(traces: Sequence[Trace], account: Account) -> Iterator[str]:
    """A note that GPUs were fake, where records mention them."""
    calls = [call for trace in traces for call in trace.signatures]
    if account.cuda and any(one.device == "cuda" for call in calls for one in (*call.inputs, *call.outputs)):
        yield f"programs found {account.local_world_size} GPUs a node, which were pretended (--device)"


def _not_compared(traces: Sequence[Trace]) -> Iterator[str]:
    """A note on the lines of collectives whose sizes depend on guessed values and were not compared."""
    sources = sized_differently(traces)
    if sources:
        lines = ", ".join(f"{source.file}:{source.line}" for source in sources[:_MOST_LINES])
        more = "" if len(sources) <= _MOST_LINES else f" and {len(sources) - _MOST_LINES} more lines"
        yield f"{lines}{more}: sizes that rest on values from other ranks differ here and were not compared"


def _guessed(traces: Sequence[Trace]) -> Iterator[str]:
    """Notes on the lines at which programs read guessed values."""
    lines: dict[Source, list[int]] = {}
    for trace in traces:
        for source in tainted_reads(trace):
            lines.setdefault(replace(source, function=""), []).append(trace.rank)
    for source, ranks in list(lines.items())[:_MOST_LINES]:
        yield (
            f"{source.file}:{source.line}: {ranks_text(ranks)} {verb(ranks, 'reads', 'read')} a value received from "
            f"other ranks; what follows from it may differ in the real run"
        )
    if len(lines) > _MOST_LINES:
        yield f"so do {len(lines) - _MOST_LINES} more lines"
