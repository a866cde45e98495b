"""The notes of a dry run's report: which ranks ran, how they ended, what was only guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Source
from simcoll.core.trace import Trace
from simcoll.dryrun.endings import RankEnding, RankEndings
from simcoll.dryrun.rank.main import DryRun, log_name
from simcoll.dryrun.records import sized_differently, tainted_reads

_BEYOND = ": nothing is known beyond that"
_OTHERS = "nothing is said of the others"
_MOST_LINES = 10
_GIB = 1 << 30


def notes(dry_run: DryRun, timeout: float, ends: RankEndings, traces: Sequence[Trace]) -> list[str]:
    """The notes; ``timeout`` is each rank's limit in seconds, ``traces`` are as the ranks recorded them."""
    return [
        *_ranks_and_endings(dry_run, timeout, ends),
        *_fake_gpus(dry_run, traces),
        *_without_record(dry_run, ends, traces),
        *_guessed(traces),
        *_not_compared(traces),
    ]


def _ranks_and_endings(dry_run: DryRun, timeout: float, ends: RankEndings) -> list[str]:
    size = dry_run.world_size
    found = []
    if len(ends.how) < size:
        found.append(f"{ranks_text(ends.how)} of {size:,} {verb(list(ends.how), 'was', 'were')} run; {_OTHERS}")
    if timed_out := ends.ranks(RankEnding.TIMED_OUT):
        found.append(f"{ranks_text(timed_out)} ran for {timeout:g} s and did not end (--timeout){_BEYOND}")
    if killed := ends.ranks(RankEnding.OUT_OF_MEMORY):
        limit = "" if dry_run.memory is None else f" (--memory allows {dry_run.memory / _GIB:g} GiB of address space)"
        who = f"{ranks_text(killed)} {verb(killed, 'was', 'were')}"
        found.append(f"{who} ended for want of memory{limit}{_BEYOND}; give more, or --fake-tensors")
    if stopped := ends.ranks(RankEnding.STEPS_DONE):
        found.append(
            f"{ranks_text(stopped)} {verb(stopped, 'was', 'were')} ended after {dry_run.steps} steps (--steps)"
        )
    if guessed := ends.ranks(RankEnding.GUESSED):
        found.append(
            f"{ranks_text(guessed)} failed on values from other ranks, which a dry run can only guess{_BEYOND}"
        )
    if failed := [*ends.ranks(RankEnding.FAILED), *guessed, *killed]:
        found.append(f"what rank {failed[0]} wrote is in {dry_run.folder / log_name(failed[0])}")
    return found


def _without_record(dry_run: DryRun, ends: RankEndings, traces: Sequence[Trace]) -> list[str]:
    """The ranks that ended well without a record."""
    known = {trace.rank for trace in traces}
    unrecorded = [rank for rank in ends.ranks(RankEnding.FINISHED) if rank not in known]
    if not unrecorded:
        return []
    wrote = f"what rank {unrecorded[0]} wrote is in {dry_run.folder / log_name(unrecorded[0])}"
    return [f"{ranks_text(unrecorded)} made no process group that could be recorded; {wrote}"]


def _fake_gpus(dry_run: DryRun, traces: Sequence[Trace]) -> list[str]:
    """That GPUs were fake, where records mention them."""
    calls = [call for trace in traces for call in trace.signatures]
    if dry_run.cuda and any(one.device == "cuda" for call in calls for one in (*call.inputs, *call.outputs)):
        return [f"programs found {dry_run.local_world_size} GPUs a node, which were pretended (--device)"]
    return []


def _not_compared(traces: Sequence[Trace]) -> list[str]:
    """Where the sizes of a collective depend on guessed values and were not compared."""
    sources = sized_differently(traces)
    if not sources:
        return []
    lines = ", ".join(f"{source.file}:{source.line}" for source in sources[:_MOST_LINES])
    more = "" if len(sources) <= _MOST_LINES else f" and {len(sources) - _MOST_LINES} more lines"
    return [f"{lines}{more}: sizes that rest on values from other ranks differ here and were not compared"]


def _guessed(traces: Sequence[Trace]) -> list[str]:
    """Where programs read guessed values."""
    lines: dict[Source, list[int]] = {}
    for trace in traces:
        for source in tainted_reads(trace):
            lines.setdefault(replace(source, function=""), []).append(trace.rank)
    found = [
        f"{source.file}:{source.line}: {ranks_text(ranks)} {verb(ranks, 'reads', 'read')} a value received from other "
        f"ranks; what follows from it may differ in the real run"
        for source, ranks in list(lines.items())[:_MOST_LINES]
    ]
    if len(lines) > _MOST_LINES:
        found.append(f"so do {len(lines) - _MOST_LINES} more lines")
    return found
