"""A dry run: the unchanged script once a rank, each alone in a process; then the verdict on what they recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.evidence import gather
from simcoll.lone_rank import DryRun
from simcoll.lone_ranks import LoneEnd, run_lone_ranks
from simcoll.preflight_ends import ends_of
from simcoll.preflight_notes import notes
from simcoll.preflight_ranks import first_choice, next_choice
from simcoll.preflight_records import comparable
from simcoll.preflight_verdict import verdict
from simcoll.reading import cores
from simcoll.recorder import box_name
from simcoll.verifier.finding import Report
from simcoll.verifier.overview import DRY_RUN
from simcoll.verifier.trace import Trace

_LEFT_BEHIND = (
    "rank*.simcoll",
    "rank*.stack",
    "rank*.log",
    "rank*.stage*",
    "rank-saved-*",
    "report.json",
    "report.html",
    "launch*.json",
)


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
    """Run the ranks and judge them; black boxes and the ranks' output are left in the dry run's folder."""
    run = run or functools.partial(run_ranks, dry_run, plan)
    ends: dict[int, LoneEnd] = {}
    traces: tuple[Trace, ...] = ()
    chosen = list(first_choice(dry_run.world_size) if plan.ranks is None else plan.ranks)
    while chosen:
        total, before = len(ends) + len(chosen), len(ends)

        def done(count: int, total: int = total, before: int = before) -> None:
            if progress is not None:
                progress(before + count, total)

        ends |= run(chosen, done)
        traces = gather([path for rank in ends if (path := dry_run.folder / box_name(rank)).exists()]).traces
        chosen = next_choice(traces, ends.keys(), dry_run.world_size) if plan.ranks is None else []
    return _report(dry_run, plan, ends, traces)


def _report(dry_run: DryRun, plan: Plan, processes: Mapping[int, LoneEnd], traces: Sequence[Trace]) -> Report:
    ends = ends_of(traces, comparable(traces), processes)
    report = verdict(ends, dry_run.world_size)
    kept = [note for note in report.notes if not note.startswith("there is no record of")]
    said = (*notes(dry_run, plan.timeout, ends, traces), *kept)
    return replace(report, mode=DRY_RUN, world_size=dry_run.world_size, notes=said)


def remove_earlier(folder: Path) -> None:
    """Remove what an earlier dry run of more ranks left in the folder."""
    for pattern in _LEFT_BEHIND:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
