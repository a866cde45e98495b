"""A dry run: the unchanged script once a rank, each alone in a process; then the verdict on what they recorded."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.evidence import gather
from simcoll.lone_rank import DryRun, log_name
from simcoll.lone_ranks import LoneEnd, run_lone_ranks
from simcoll.preflight_ends import Ends, How, ends_of
from simcoll.preflight_passes import Passes, remove_inputs
from simcoll.preflight_ranks import first_choice, next_choice
from simcoll.preflight_records import comparable, reads
from simcoll.preflight_verdict import verdict
from simcoll.preflight_ways import Parting
from simcoll.record import Source
from simcoll.recorder import box_name
from simcoll.verifier.finding import Report
from simcoll.verifier.overview import DRY_RUN
from simcoll.verifier.ranges import ranks_text, verb
from simcoll.verifier.trace import Trace

_BEYOND = ": nothing is known beyond that"
_OTHERS = "nothing is said of the others"
_MOST_LINES = 10
_LEFT_BEHIND = (
    "rank*.simcoll",
    "rank*.inputs",
    "rank*.stack",
    "rank*.log",
    "rank*.stage*",
    "rank-saved-*",
    "report.json",
    "report.html",
    "launch*.json",
)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """Which ranks run (None: chosen as the run goes), for how many seconds each at most, how many at a time.

    ``jobs`` is None for as many as there are cores.
    """

    ranks: Sequence[int] | None
    timeout: float
    jobs: int | None = None


Runner = Callable[[Sequence[int], Callable[[int], None]], dict[int, LoneEnd]]
"""Runs ranks, tells as it goes how many have ended, and leaves their records in the dry run's folder."""


def run_ranks(dry_run: DryRun, plan: Plan, ranks: Iterable[int], done: Callable[[int], object]) -> dict[int, LoneEnd]:
    """Run ranks in this process alone."""
    return run_lone_ranks(dry_run, ranks, timeout=plan.timeout, jobs=plan.jobs or cores(), done=done)


def preflight(
    dry_run: DryRun, plan: Plan, progress: Callable[[int, int], None] | None = None, run: Runner | None = None
) -> Report:
    """Run the ranks and judge them; black boxes and the ranks' output are left in the dry run's folder.

    Where ranks went different ways on guesses, or failed on one, they run again (:mod:`simcoll.preflight_passes`),
    unless it is ``run`` that runs them.
    """
    ran = _Ran(dry_run, progress)
    chosen = list(first_choice(dry_run.world_size) if plan.ranks is None else plan.ranks)
    while chosen:
        ran.run(chosen, run or functools.partial(run_ranks, dry_run, plan))
        chosen = next_choice(ran.traces, dry_run.world_size) if plan.ranks is None else []
    judged = _Judged.of(ran, dry_run)
    notes = []
    if (judged.partings or judged.ends.ranks(How.GUESSED)) and run is None:
        passes, more = Passes(dry_run.folder, ran.ends), True

        def once_more(known: DryRun, ranks: Sequence[int]) -> None:
            ran.run(ranks, functools.partial(run_ranks, known, plan))

        while more:
            more = passes.again(dry_run, ran.traces, once_more)
        judged = _Judged.of(ran, dry_run)
        notes = [
            f"the values of {passes.calls:,} calls were those of the ranks that ran, which were run again with them"
        ]
    remove_inputs(dry_run.folder)
    return _report(dry_run, plan, judged, notes)


class _Ran:
    """The ranks that have run, and what they recorded."""

    def __init__(self, dry_run: DryRun, progress: Callable[[int, int], None] | None) -> None:
        self._folder = dry_run.folder
        self._progress = progress
        self._runs = 0
        self.ends: dict[int, LoneEnd] = {}
        self.traces: tuple[Trace, ...] = ()

    def run(self, ranks: Sequence[int], run: Runner) -> None:
        before, total = self._runs, self._runs + len(ranks)

        def done(count: int) -> None:
            if self._progress is not None:
                self._progress(before + count, total)

        self.ends |= run(ranks, done)
        self._runs = total
        self.traces = gather([path for rank in self.ends if (path := self._folder / box_name(rank)).exists()]).traces


@dataclass(frozen=True, slots=True)
class _Judged:
    ends: Ends
    traces: Sequence[Trace]
    report: Report
    partings: Sequence[Parting]

    @classmethod
    def of(cls, ran: _Ran, dry_run: DryRun) -> _Judged:
        ends = ends_of(ran.traces, comparable(ran.traces), ran.ends)
        return cls(ends, ran.traces, *verdict(ends, dry_run.world_size))


def _report(dry_run: DryRun, plan: Plan, judged: _Judged, notes: Sequence[str]) -> Report:
    ends, traces = judged.ends, judged.traces
    others = [note for note in judged.report.notes if not note.startswith("there is no record of")]
    return replace(
        judged.report,
        mode=DRY_RUN,
        world_size=dry_run.world_size,
        notes=(
            *_notes(dry_run, plan, ends),
            *_device_notes(dry_run, traces),
            *_silent(dry_run, ends, traces),
            *notes,
            *(parting.note() for parting in judged.partings),
            *_flow_notes(traces),
            *others,
        ),
    )


def _notes(dry_run: DryRun, plan: Plan, ends: Ends) -> list[str]:
    size = dry_run.world_size
    notes = []
    if len(ends.how) < size:
        notes.append(f"{ranks_text(ends.how)} of {size:,} {verb(list(ends.how), 'was', 'were')} run; {_OTHERS}")
    if overdue := ends.ranks(How.OVERDUE):
        notes.append(f"{ranks_text(overdue)} ran for {plan.timeout:g} s and did not end (--timeout){_BEYOND}")
    if killed := ends.ranks(How.KILLED):
        limit = "" if dry_run.memory is None else f" (--memory allows {dry_run.memory / _GIB:g} GiB of address space)"
        who = f"{ranks_text(killed)} {verb(killed, 'was', 'were')}"
        notes.append(f"{who} ended for want of memory{limit}{_BEYOND}; give more, or --fake-tensors")
    if cut := ends.ranks(How.CUT):
        notes.append(f"{ranks_text(cut)} {verb(cut, 'was', 'were')} ended after {dry_run.steps} steps (--steps)")
    if guessed := ends.ranks(How.GUESSED):
        notes.append(
            f"{ranks_text(guessed)} failed on values from other ranks, which a dry run can only guess{_BEYOND}"
        )
    if failed := [*ends.ranks(How.FAILED), *guessed, *killed]:
        notes.append(f"what rank {failed[0]} wrote is in {dry_run.folder / log_name(failed[0])}")
    return notes


def _silent(dry_run: DryRun, ends: Ends, traces: Sequence[Trace]) -> list[str]:
    """Which ranks ended well and left nothing to be judged by."""
    known = {trace.rank for trace in traces}
    silent = [rank for rank in ends.ranks(How.FINISHED) if rank not in known]
    if not silent:
        return []
    wrote = f"what rank {silent[0]} wrote is in {dry_run.folder / log_name(silent[0])}"
    return [f"{ranks_text(silent)} made no process group that could be recorded; {wrote}"]


def _device_notes(dry_run: DryRun, traces: Sequence[Trace]) -> list[str]:
    """What was pretended, where it shows in the records."""
    calls = [call for trace in traces for call in trace.signatures]
    if dry_run.cuda and any(one.device == "cuda" for call in calls for one in (*call.inputs, *call.outputs)):
        return [f"programs found {dry_run.local_world_size} GPUs a node, which were pretended (--device)"]
    return []


def _flow_notes(traces: Sequence[Trace]) -> list[str]:
    """Where programs read values that a dry run can only guess."""
    lines: dict[Source, list[int]] = {}
    for trace in traces:
        for source in reads(trace):
            lines.setdefault(replace(source, function=""), []).append(trace.rank)
    notes = [
        f"{source.file}:{source.line}: {ranks_text(ranks)} {verb(ranks, 'reads', 'read')} a value received from other "
        f"ranks; what follows from it may differ in the real run"
        for source, ranks in list(lines.items())[:_MOST_LINES]
    ]
    if len(lines) > _MOST_LINES:
        notes.append(f"so do {len(lines) - _MOST_LINES} more lines")
    return notes


def cores() -> int:
    """How many ranks run at a time."""
    return len(os.sched_getaffinity(0))


def remove_earlier(folder: Path) -> None:
    """Remove what an earlier dry run of more ranks left in the folder."""
    for pattern in _LEFT_BEHIND:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
