"""A dry run: the unchanged script once a rank, each alone in a process; then the verdict on what they recorded."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.blackbox.gather import gather
from simcoll.blackbox.reader_pool import cores
from simcoll.core.trace import MemoryTrace, Trace
from simcoll.dryrun.choose_ranks import first_choice, next_choice
from simcoll.dryrun.endings import Ends, How, ends_of
from simcoll.dryrun.notes import notes
from simcoll.dryrun.passes import Passes, remove_inputs
from simcoll.dryrun.process_pool import LoneEnd, run_lone_ranks
from simcoll.dryrun.rank.main import DryRun
from simcoll.dryrun.records import comparable, sized_differently
from simcoll.dryrun.verdict import DryRunVerdict, verdict
from simcoll.recorder.recorder import box_name
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.findings.overview import DRY_RUN

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


@dataclass(frozen=True, slots=True)
class DryRunPlan:
    """Which ranks run (None: chosen as the run goes), for how many seconds each at most, how many at a time.

    ``jobs`` is None for as many as there are cores.
    """

    ranks: Sequence[int] | None
    timeout: float
    jobs: int | None = None


Runner = Callable[[Sequence[int], Callable[[int], None]], dict[int, LoneEnd]]
"""Runs ranks, tells as it goes how many have ended, and leaves their records in the dry run's folder."""


def run_ranks(
    dry_run: DryRun, plan: DryRunPlan, ranks: Iterable[int], done: Callable[[int], object]
) -> dict[int, LoneEnd]:
    """Run ranks in this process alone."""
    return run_lone_ranks(dry_run, ranks, timeout=plan.timeout, jobs=plan.jobs or cores(), done=done)


def preflight(
    dry_run: DryRun, plan: DryRunPlan, progress: Callable[[int, int], None] | None = None, run: Runner | None = None
) -> tuple[Report, list[MemoryTrace]]:
    """Run the ranks and judge them, and give what the real run would have recorded.

    Black boxes and the ranks' output are left in the dry run's folder. Where ranks went different ways on guesses,
    failed on one, or sized a call by them, they run again (:mod:`simcoll.dryrun.passes`), unless it is ``run`` that
    runs them.
    """
    ran = _Ran(dry_run, progress)
    chosen = list(first_choice(dry_run.world_size) if plan.ranks is None else plan.ranks)
    while chosen:
        ran.run(chosen, run or functools.partial(run_ranks, dry_run, plan))
        chosen = next_choice(ran.traces, ran.ends.keys(), dry_run.world_size) if plan.ranks is None else []
    judged = _Judged.of(ran, dry_run)
    said: list[str] = []
    if (judged.verdict.partings or judged.ends.ranks(How.GUESSED) or sized_differently(ran.traces)) and run is None:
        passes, more = Passes(dry_run.folder, ran.ends), True

        def once_more(known: DryRun, ranks: Sequence[int]) -> None:
            ran.run(ranks, functools.partial(run_ranks, known, plan))

        while more:
            more = passes.again(dry_run, ran.traces, once_more)
        judged = _Judged.of(ran, dry_run)
        said = passes.notes()
    remove_inputs(dry_run.folder)
    return _report(dry_run, plan, judged, said), [*judged.verdict.traces]


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
    verdict: DryRunVerdict

    @classmethod
    def of(cls, ran: _Ran, dry_run: DryRun) -> _Judged:
        ends = ends_of(ran.traces, comparable(ran.traces), ran.ends)
        return cls(ends, ran.traces, verdict(ends, dry_run.world_size))


def _report(dry_run: DryRun, plan: DryRunPlan, judged: _Judged, passes: Sequence[str]) -> Report:
    kept = [note for note in judged.verdict.report.notes if not note.startswith("there is no record of")]
    said = notes(dry_run, plan.timeout, judged.ends, judged.traces)
    parted = [parting.note() for parting in judged.verdict.partings]
    return replace(
        judged.verdict.report, mode=DRY_RUN, world_size=dry_run.world_size, notes=(*said, *passes, *parted, *kept)
    )


def remove_earlier(folder: Path) -> None:
    """Remove what an earlier dry run of more ranks left in the folder."""
    for pattern in _LEFT_BEHIND:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
