"""A dry run as a whole: chooses ranks, runs each alone, replays them together, judges them and reports.

Where the verdict rests on guessed values, :class:`Passes` runs ranks again: their inputs to calls are known from the
pass before. A pass works out results from the inputs that the pass before has saved
(:mod:`simcoll.dryrun.rank.known_inputs`). It is the last one if all ranks give the same inputs again: then each result
follows from the ranks' true inputs. In the third of these passes, results count as guessed, though they are the
same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.blackbox.gather import gather
from simcoll.core.process import cores
from simcoll.core.trace import MemoryTrace, Trace
from simcoll.dryrun.account import ACCOUNT_NAME, Account, write_account
from simcoll.dryrun.chosen_ranks import FOR_VERDICT, RankChoice
from simcoll.dryrun.endings import (
    ProcessEnd,
    RankEnding,
    assumes_keys,
    branch_lines,
    follows_guessed_branch,
    lacks_objects,
)
from simcoll.dryrun.private_files import RANK_FILES, REDIRECTED, made_changes, private_files
from simcoll.dryrun.process_pool import remove_tree, run_rank_processes
from simcoll.dryrun.rank.known_inputs import GivenInputs, InputsByRank, KnownInputs, inputs_name, read_inputs
from simcoll.dryrun.rank.settings import DryRun
from simcoll.dryrun.records import sized_differently, tainted_reads
from simcoll.dryrun.report import JudgedDryRun, judge_dry_run, report_of
from simcoll.recorder.recorder import box_name
from simcoll.verifier.findings.finding import Report, errors_of

MOST_PASSES = 3
"""At most so many passes follow the first run."""


class Passes:
    """Repeated passes; each uses the inputs that the one before saved."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._folder = folder
        self._given: InputsByRank = {rank: read_inputs(folder / inputs_name(rank)) for rank in ranks}
        self._readers: set[int] = set()
        self.made = 0

    def notes(self) -> list[str]:
        """The report's notes about the passes."""
        calls = len(set[str]().union(*self._given.values()))
        if not self._readers or not calls:
            return []
        return [f"the values of {calls:,} calls were those of the ranks that ran, which were run again with them"]

    def rerun(self, dry_run: DryRun, traces: Sequence[Trace], run: Callable[[DryRun, Sequence[int]], object]) -> bool:
        """Make one more pass; returns True if another one is to follow.

        All ranks run again: those that read no guess may have received what others have worked out from one.
        """
        self.made += 1
        self._readers |= {
            trace.rank for trace in traces if branch_lines(trace) or tainted_reads(trace) or lacks_objects(trace)
        }
        files = {} if dry_run.files is None else made_changes(dry_run.files)
        ranks = sorted(self._given)
        sharing = dry_run.files and replace(dry_run.files, run=self.made)
        run(replace(dry_run, known=KnownInputs(self._given, self.made < MOST_PASSES), files=sharing), ranks)
        given = {**self._given, **{rank: read_inputs(self._folder / inputs_name(rank)) for rank in ranks}}
        before, self._given = self._given, given
        wrote_the_same = sharing is None or not files or made_changes(sharing) == files
        return self.made < MOST_PASSES and not (
            wrote_the_same and all(_texts(before[rank]) == _texts(given[rank]) for rank in ranks)
        )


def _texts(given: Mapping[str, GivenInputs]) -> dict[str, str]:
    return {place: one.text for place, one in given.items()}


_FOR_OTHERS = ("rank*.inputs", "rank*.stage*")
"""What ranks leave in the folder for each other, and for a run once more."""


def _remove_all(folder: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink(missing_ok=True)


_LEFT_BEHIND = (
    *_FOR_OTHERS,
    "rank*.simcoll",
    "rank*.stack",
    "rank*.log",
    RANK_FILES,
    "report.json",
    "report.html",
    "launch*.json",
    ACCOUNT_NAME,
)


@dataclass(frozen=True, slots=True)
class DryRunPlan:
    """The plan for running the ranks of a dry run.

    ``ranks`` is None where ``choice`` chooses them by the records of earlier ones; ``timeout`` is in seconds for each
    rank; ``jobs`` is the number that run at a time, None for as many as there are cores.
    """

    ranks: Sequence[int] | None
    timeout: float
    jobs: int | None = None
    choice: RankChoice = FOR_VERDICT


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs ranks, here or elsewhere.

    ``run`` tells as it goes how many have ended, and leaves their records, and their inputs to calls, in the dry run's
    folder. ``were_parted`` is True once ranks have left something for others, such as files, that not all of them could
    see, because they ran in several places.
    """

    run: Callable[[DryRun, Sequence[int], Callable[[int], None]], dict[int, ProcessEnd]]
    were_parted: Callable[[], bool] = lambda: False


def run_locally(
    dry_run: DryRun, plan: DryRunPlan, ranks: Iterable[int], done: Callable[[int], object]
) -> dict[int, ProcessEnd]:
    """Run ranks on this host alone."""
    with nullcontext(dry_run) if dry_run.files is not None else private_files(dry_run, plan.timeout) as prepared:
        return run_rank_processes(prepared, ranks, timeout=plan.timeout, jobs=plan.jobs or cores(), done=done)


def run_and_judge(
    dry_run: DryRun, plan: DryRunPlan, progress: Callable[[int, int], None] | None = None, runner: Runner | None = None
) -> tuple[Report, list[MemoryTrace]]:
    """Choose ranks, run each alone, replay and judge them together; returns the report and the real run's records.

    Black boxes and the ranks' output are left in the dry run's folder. Where the verdict rests on guessed values, the
    ranks run again (:class:`Passes`). Where ranks ran in several places, and what is wrong may follow from that, all of
    them run again here.
    """
    try:
        return _run_and_judge(dry_run, plan, progress, runner)
    finally:
        _remove_all(dry_run.folder, _FOR_OTHERS)


def _run_and_judge(
    dry_run: DryRun, plan: DryRunPlan, progress: Callable[[int, int], None] | None, runner: Runner | None
) -> tuple[Report, list[MemoryTrace]]:
    def run_here(known: DryRun, ranks: Sequence[int], done: Callable[[int], None]) -> dict[int, ProcessEnd]:
        return run_locally(known, plan, ranks, done)

    here = Runner(run_here)
    with private_files(dry_run, plan.timeout) as prepared:
        ran = _RanRanks(prepared, progress)
        _run_chosen(ran, plan, runner or here)
        judged, notes = _settled(ran, runner or here)
    if runner is not None and runner.were_parted() and _is_wrong(judged):
        with private_files(dry_run, plan.timeout) as prepared:
            ran.dry_run = prepared
            ran.run(sorted(ran.ends), here, replace(prepared, again=True))
            judged, notes = _settled(ran, here)
        notes = [_RAN_TOGETHER, *notes]
    account = _account(ran, plan, notes)
    write_account(dry_run.folder, account)
    return report_of(judged, account, dry_run.folder), [*judged.verdict.traces]


_RAN_TOGETHER = (
    "ranks left files or objects for each other, which those that ran elsewhere could not find: all ran again here"
)


def _settled(ran: _RanRanks, runner: Runner) -> tuple[JudgedDryRun, list[str]]:
    """The verdict after as many passes as it takes, and the report's notes on them."""
    judged = _judge(ran)
    if runner.were_parted() or not (_rests_on_guesses(judged) or _rests_on_files(ran, judged)):
        return judged, []
    notes = _run_again(ran, runner)
    return _judge(ran), notes


class _RanRanks:
    """The ranks that have run, the ends of their processes, and their records."""

    def __init__(self, dry_run: DryRun, progress: Callable[[int, int], None] | None) -> None:
        self.dry_run = dry_run
        self._progress = progress
        self._runs = 0
        self.ends: dict[int, ProcessEnd] = {}
        self.traces: tuple[Trace, ...] = ()

    def run(self, ranks: Sequence[int], runner: Runner, dry_run: DryRun) -> None:
        """Run ranks, once more where they have run; ``dry_run`` has the settings of the pass."""
        for rank in ranks:
            (self.dry_run.folder / box_name(rank)).unlink(missing_ok=True)
        before, total = self._runs, self._runs + len(ranks)

        def done(count: int) -> None:
            if self._progress is not None:
                self._progress(before + count, total)

        self.ends |= runner.run(dry_run, ranks, done)
        self._runs = total
        boxes = [self.dry_run.folder / box_name(rank) for rank in self.ends]
        self.traces = gather([path for path in boxes if path.exists()]).traces


def _run_chosen(ran: _RanRanks, plan: DryRunPlan, runner: Runner) -> None:
    first = replace(ran.dry_run, again=True)
    if plan.ranks is not None:
        ran.run(plan.ranks, runner, first)
        return
    size = ran.dry_run.world_size
    chosen = plan.choice.first(size)
    while chosen:
        ran.run(chosen, runner, first)
        chosen = plan.choice.following(ran.traces, ran.ends.keys(), size)


def _judge(ran: _RanRanks) -> JudgedDryRun:
    return judge_dry_run(ran.traces, ran.ends, ran.dry_run.world_size)


def _is_wrong(judged: JudgedDryRun) -> bool:
    """True if there are errors, or what may turn out to be one."""
    wrong = bool(errors_of(judged.verdict.report.findings))
    return wrong or bool(judged.endings.ranks(RankEnding.FAILED)) or _rests_on_guesses(judged)


def _rests_on_guesses(judged: JudgedDryRun) -> bool:
    """True if ranks took different branches on guessed values, failed or went round on one, sized a call by one, or
    disagree.

    Or a rank waited for a key of a store, which a rank that was started later may have set.
    """
    failed = judged.endings.ranks(RankEnding.GUESSED) or judged.endings.ranks(RankEnding.ENDLESS)
    if judged.verdict.divergences or failed or sized_differently(judged.recorded):
        return True
    if any(map(assumes_keys, judged.recorded)):
        return True
    # Ranks that all take the same branch on a guess may all take the other one in the real run.
    errors = errors_of(judged.verdict.report.findings)
    if errors and any(map(lacks_objects, judged.recorded)):
        return True
    return any(follows_guessed_branch(finding, judged.endings.traces) for finding in errors)


def _rests_on_files(ran: _RanRanks, judged: JudgedDryRun) -> bool:
    """True if an error may follow from files of ranks that were started later."""
    files = ran.dry_run.files
    wrong = bool(errors_of(judged.verdict.report.findings))
    return files is not None and (wrong or bool(judged.endings.ranks(RankEnding.FAILED))) and bool(made_changes(files))


def _run_again(ran: _RanRanks, runner: Runner) -> list[str]:
    """Make passes until the ranks give the same inputs as in the one before; returns the report's notes on them."""

    def run_with(known: DryRun, ranks: Sequence[int]) -> None:
        ran.run(ranks, runner, known)

    passes = Passes(ran.dry_run.folder, ran.ends)
    while passes.rerun(ran.dry_run, ran.traces, run_with):
        pass
    return passes.notes()


def _account(ran: _RanRanks, plan: DryRunPlan, passes: Sequence[str]) -> Account:
    dry_run = ran.dry_run
    redirected = [] if dry_run.files is None or dry_run.files.overlays else [REDIRECTED]
    return Account(
        dry_run.world_size,
        dry_run.local_world_size,
        plan.timeout,
        dry_run.steps,
        dry_run.memory,
        dry_run.cuda,
        ran.ends,
        [*redirected, *passes],
    )


def remove_earlier(folder: Path) -> None:
    """Remove the files of an earlier dry run of more ranks from the folder."""
    _remove_all(folder, _LEFT_BEHIND)
