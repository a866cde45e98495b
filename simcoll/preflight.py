"""A dry run: the unchanged script once a rank, each alone in a process; then the verdict on what they recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.evidence import gather
from simcoll.lone_rank import DryRun, log_name
from simcoll.lone_ranks import LoneEnd, run_lone_ranks
from simcoll.preflight_halts import by_majority, halt_of
from simcoll.preflight_ranks import first_choice, next_choice
from simcoll.preflight_records import comparable, last_ns, reads
from simcoll.record import Source
from simcoll.recorder import box_name
from simcoll.verifier.finding import Report
from simcoll.verifier.postmortem import exit_code, judge
from simcoll.verifier.ranges import ranks_text, verb
from simcoll.verifier.trace import LaunchOutcome, RankExit, Trace

_SIGKILL = -9
_MOST_LINES = 10
_LEFT = (
    *("rank*.simcoll", "rank*.stacks", "rank*.log", "rank*.stage*", "rank-saved-*"),
    *("report.json", "report.html", "launch*.json"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which ranks run (None: chosen as the run goes), for how many seconds each at most, how many at a time."""

    ranks: Sequence[int] | None
    timeout: float
    jobs: int


def preflight(dry_run: DryRun, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Report:
    """Run the ranks and judge them; black boxes and the ranks' output are left in the dry run's folder."""
    ends: dict[int, LoneEnd] = {}
    traces: tuple[Trace, ...] = ()
    chosen = list(first_choice(dry_run.world_size) if plan.ranks is None else plan.ranks)
    while chosen:
        total, before = len(ends) + len(chosen), len(ends)

        def done(count: int, total: int = total, before: int = before) -> None:
            if progress is not None:
                progress(before + count, total)

        ends |= run_lone_ranks(dry_run, chosen, timeout=plan.timeout, jobs=plan.jobs, done=done)
        traces = gather([path for rank in ends if (path := dry_run.folder / box_name(rank)).exists()]).traces
        chosen = next_choice(traces, dry_run.world_size) if plan.ranks is None else []
    return _report(dry_run, plan, ends, traces)


def _report(dry_run: DryRun, plan: Plan, ends: Mapping[int, LoneEnd], traces: Sequence[Trace]) -> Report:
    judged = comparable(traces)
    last = {trace.rank: last_ns(trace) for trace in judged}
    exits = {rank: RankExit(end.exit_code, last.get(rank, 1), end.overdue) for rank, end in sorted(ends.items())}
    report = judge(judged, LaunchOutcome(exits))
    halt = halt_of(judged, exits, max(last.values(), default=1))
    if halt is not None and exit_code(report) == 0:
        report = by_majority(judge(halt.traces, halt.outcome, halt.stall), halt)
    notes = [note for note in report.notes if not note.startswith("there is no record of")]
    return replace(
        report,
        mode="preflight",
        world_size=dry_run.world_size,
        notes=(*_notes(dry_run, plan, ends), *_device_notes(dry_run, traces), *_flow_notes(traces), *notes),
    )


def _notes(dry_run: DryRun, plan: Plan, ends: Mapping[int, LoneEnd]) -> list[str]:
    size = dry_run.world_size
    rest = "" if len(ends) == size else "; nothing is said of the others"
    notes = [f"a dry run of {ranks_text(ends)} of {size}{rest}"]
    if overdue := [rank for rank, end in ends.items() if end.overdue]:
        notes.append(f"{ranks_text(overdue)} ran for {plan.timeout:g} s and did not end (--timeout)")
    killed = [rank for rank, end in ends.items() if end.exit_code == _SIGKILL and not end.overdue]
    if killed:
        notes.append(
            f"{ranks_text(killed)} {verb(killed, 'was', 'were')} killed, perhaps for want of memory; see --fake-tensors"
        )
    failed = [rank for rank, end in ends.items() if end.exit_code and not end.overdue]
    if failed:
        notes.append(f"what rank {failed[0]} wrote is in {dry_run.folder / log_name(failed[0])}")
    return notes


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
    for pattern in _LEFT:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
