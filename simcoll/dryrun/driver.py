"""A dry run as a whole: chooses ranks, runs each alone, replays them together, judges them and reports."""

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
from simcoll.dryrun.endings import RankEnding, RankEndings, endings_of
from simcoll.dryrun.notes import notes
from simcoll.dryrun.passes import Passes, remove_inputs
from simcoll.dryrun.process_pool import ProcessEnd, run_rank_processes
from simcoll.dryrun.rank.main import DryRun
from simcoll.dryrun.records import comparable, sized_differently
from simcoll.dryrun.verdict import DryRunVerdict, verdict
from simcoll.recorder.recorder import box_name
from simcoll.verifier.findings.finding import DRY_RUN, Report

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
    """How the ranks of a dry run are run.

    ``ranks`` is None where they are chosen from what those before recorded; ``timeout`` is in seconds for each rank;
    ``jobs`` is how many run at a time, None for as many as there are cores.
    """

    ranks: Sequence[int] | None
    timeout: float
    jobs: int | None = None


Runner = Callable[[Sequence[int], Callable[[int], None]], dict[int, ProcessEnd]]
"""Runs ranks, reports how many have ended as it goes, and leaves their records in the dry run's folder."""


def run_ranks(
    dry_run: DryRun, plan: DryRunPlan, ranks: Iterable[int], done: Callable[[int], object]
) -> dict[int, ProcessEnd]:
    """Run ranks on this host alone."""
    return run_rank_processes(dry_run, ranks, timeout=plan.timeout, jobs=plan.jobs or cores(), done=done)


def preflight(
    dry_run: DryRun, plan: DryRunPlan, progress: Callable[[int, int], None] | None = None, run: Runner | None = None
) -> tuple[Report, list[MemoryTrace]]:
    """Choose ranks, run each alone, replay and judge them together; returns the report and the real run's records.

    Black boxes and the ranks' output are left in the dry run's folder. Where the verdict rests on guessed values, the
    ranks that read some run again (:mod:`simcoll.dryrun.passes`), unless ``run`` runs them, which cannot do that.
    """
    ran = _RanRanks(dry_run, progress)
    _run_chosen(ran, plan, run or functools.partial(run_ranks, dry_run, plan))
    judged = _judge(ran)
    pass_notes: list[str] = []
    if run is None and _rests_on_guesses(ran, judged):
        pass_notes = _run_again(ran, plan)
        judged = _judge(ran)
    remove_inputs(dry_run.folder)
    return _report(ran, plan, judged, pass_notes), [*judged.verdict.traces]


class _RanRanks:
    """The ranks that have run, how their processes ended, and what they recorded."""

    def __init__(self, dry_run: DryRun, progress: Callable[[int, int], None] | None) -> None:
        self.dry_run = dry_run
        self._progress = progress
        self._runs = 0
        self.ends: dict[int, ProcessEnd] = {}
        self.traces: tuple[Trace, ...] = ()

    def run(self, ranks: Sequence[int], run: Runner) -> None:
        before, total = self._runs, self._runs + len(ranks)

        def done(count: int) -> None:
            if self._progress is not None:
                self._progress(before + count, total)

        self.ends |= run(ranks, done)
        self._runs = total
        boxes = [self.dry_run.folder / box_name(rank) for rank in self.ends]
        self.traces = gather([path for path in boxes if path.exists()]).traces


def _run_chosen(ran: _RanRanks, plan: DryRunPlan, run: Runner) -> None:
    if plan.ranks is not None:
        ran.run(plan.ranks, run)
        return
    size = ran.dry_run.world_size
    chosen = first_choice(size)
    while chosen:
        ran.run(chosen, run)
        chosen = next_choice(ran.traces, ran.ends.keys(), size)


@dataclass(frozen=True, slots=True)
class _Judged:
    endings: RankEndings
    verdict: DryRunVerdict


def _judge(ran: _RanRanks) -> _Judged:
    endings = endings_of(ran.traces, comparable(ran.traces), ran.ends)
    return _Judged(endings, verdict(endings, ran.dry_run.world_size))


def _rests_on_guesses(ran: _RanRanks, judged: _Judged) -> bool:
    """Whether ranks took different branches on guessed values, failed on one, or sized a call by one."""
    failed = judged.endings.ranks(RankEnding.GUESSED)
    return bool(judged.verdict.divergences or failed or sized_differently(ran.traces))


def _run_again(ran: _RanRanks, plan: DryRunPlan) -> list[str]:
    """Make passes until the ranks give the same inputs as in the one before; returns the report's notes on them."""

    def run_with(known: DryRun, ranks: Sequence[int]) -> None:
        ran.run(ranks, functools.partial(run_ranks, known, plan))

    passes = Passes(ran.dry_run.folder, ran.ends)
    while passes.rerun(ran.dry_run, ran.traces, run_with):
        pass
    return passes.notes()


def _report(ran: _RanRanks, plan: DryRunPlan, judged: _Judged, pass_notes: Sequence[str]) -> Report:
    report = judged.verdict.report
    own = notes(ran.dry_run, plan.timeout, judged.endings, ran.traces)
    diverged = [divergence.note() for divergence in judged.verdict.divergences]
    kept = [note for note in report.notes if not note.startswith("there is no record of")]
    return replace(report, mode=DRY_RUN, world_size=ran.dry_run.world_size, notes=(*own, *pass_notes, *diverged, *kept))


def remove_earlier(folder: Path) -> None:
    """Remove what an earlier dry run of more ranks left in the folder."""
    for pattern in _LEFT_BEHIND:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
