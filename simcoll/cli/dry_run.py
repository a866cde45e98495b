"""Carries a dry run out: in this process, in several that a launcher has started, or by an executor; imports torch."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from simcoll.cli.output import Output
from simcoll.cli.progress import progress_bar
from simcoll.core.executors import Spread, opened
from simcoll.core.process import cores
from simcoll.dryrun.distributed import GivenUpError, Rendezvous, SharedDryRun, join
from simcoll.dryrun.driver import DryRunPlan, Runner, remove_earlier, run_and_judge
from simcoll.dryrun.outer_job import OuterJob
from simcoll.dryrun.prepared_imports import import_for_ranks
from simcoll.dryrun.rank.settings import DryRun
from simcoll.dryrun.spread_ranks import SpreadRanks
from simcoll.errors import BAD_INPUT, CANNOT_START, FINDINGS, ExecutorError
from simcoll.launch.preconditions import PreconditionError
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Report

_LONG_SECONDS = 60.0
_INTERRUPTED = 130

Conclude = Callable[[Report, DryRun, Output], int]
"""Concludes a dry run: shows the verdict, or its consequence, and returns the exit code."""


def show(report: Report, dry_run: DryRun, output: Output) -> int:
    """Show the verdict; the exit code of the contract."""
    output.show(report)
    return exit_code(report)


def show_complete(report: Report, dry_run: DryRun, output: Output) -> int:
    """Show the verdict; the exit code is that of findings too where the dry run did not follow its ranks to the end."""
    code = show(report, dry_run, output)
    if code or report.coverage is None or report.coverage.complete:
        return code
    output.warn(f"the dry run is incomplete (--require complete): {'; '.join(report.coverage.gaps)}")
    return FINDINGS


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A dry run as it was asked for; ``folder`` makes the folder of its results.

    ``check`` checks what it runs, where processes of a job say together what is wrong with it. ``executor`` is the
    address of the one whose workers run the ranks.
    """

    dry_run: DryRun
    plan: DryRunPlan
    folder: Callable[[], Path]
    check: Callable[[], None]
    conclude: Conclude = show
    executor: str | None = None


def carry_out(request: DryRunRequest, job: OuterJob | None, output: Output) -> int:
    """Run the ranks; the first process concludes, and all end with its exit code."""
    with _cleans_up_at_sigterm():
        return _carry_out(request, job, output)


def _carry_out(request: DryRunRequest, job: OuterJob | None, output: Output) -> int:
    try:
        if request.executor is not None:
            with opened(request.executor) as spread:
                return _lead(request, _Team(spread=spread), output)
        with nullcontext() if job is None else _meeting(job) as meeting:
            if meeting is not None:
                request.check()
                if meeting.job.number:
                    return _serve(request, meeting)
            return _lead(request, _Team(meeting), output)
    except GivenUpError as error:
        if error.is_shown and job is not None and job.number:
            return error.code
        return output.refuse(error.code, str(error))
    except (PreconditionError, ExecutorError) as error:
        return output.refuse(error.code, str(error))


class _TerminatedError(BaseException):
    """SIGTERM: the command is over."""


@contextmanager
def _cleans_up_at_sigterm() -> Iterator[None]:
    """Let SIGTERM, such as that of a time limit, end the ranks and remove their files before it ends this process."""
    # Another thread may set no handlers; whoever ignores the signal, or handles it outside of Python, goes on to.
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) in (signal.SIG_IGN, None):
        yield
        return
    own = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() == own:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come twice, to this process and to its group
            raise _TerminatedError
        _end_by_sigterm()

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except _TerminatedError:
        _end_by_sigterm()
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_by_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _meeting(job: OuterJob) -> Iterator[Rendezvous]:
    """Join the other processes, and tell them if this one does not go on."""
    meeting = join(job)
    try:
        yield meeting
    except GivenUpError as error:
        if not error.is_shown:
            meeting.give_up(error.code, str(error))
        raise
    except PreconditionError as error:
        meeting.give_up(error.code, f"{job.name}: {error}")
        raise
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        code, what = (_INTERRUPTED, "it was interrupted") if interrupted else (CANNOT_START, repr(error))
        meeting.give_up(code, f"{job.name}: {what:.300}")
        raise
    finally:
        meeting.leave()


@dataclass(frozen=True, slots=True)
class _Team:
    """Those that run ranks beside this process, or for it: processes of a job, or an executor's workers."""

    meeting: Rendezvous | None = None
    spread: Spread | None = None


def _lead(request: DryRunRequest, team: _Team, output: Output) -> int:
    dry_run = replace(request.dry_run, folder=request.folder())
    with _alone_in(dry_run.folder):
        return _lead_in(dry_run, request, team, output)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other dry run uses the folder meanwhile; raises :class:`PreconditionError` where one does already."""
    held = os.open(folder, os.O_RDONLY)
    try:
        _lock(held, folder)
        yield
    finally:
        os.close(held)


def _lock(held: int, folder: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        advice = "wait for it, or give another --out"
        raise PreconditionError(BAD_INPUT, f"another dry run is writing into {folder}; {advice}") from None


def _lead_in(dry_run: DryRun, request: DryRunRequest, team: _Team, output: Output) -> int:
    remove_earlier(dry_run.folder)
    import_for_ranks(dry_run)
    plan = _plan(request.plan, team.meeting)
    shared = None if team.meeting is None else SharedDryRun(team.meeting, plan)
    runner = _runner(shared, team.spread, request.plan)
    with progress_bar("dry run", shown=not output.plain) as progress:
        forecast = Forecast(dry_run, output.warn, progress, chosen=plan.ranks is not None)
        report, traces = run_and_judge(dry_run, plan, forecast.update, runner)
    output.save(report, dry_run.folder, traces)
    code = request.conclude(report, dry_run, output)
    if shared is not None:
        shared.conclude(code)
    return code


def _runner(shared: SharedDryRun | None, spread: Spread | None, plan: DryRunPlan) -> Runner | None:
    """Runs ranks with other processes or by an executor; None for this process alone."""
    if shared is not None:
        return Runner(shared.run, shared.ran_at.were_parted)
    if spread is None:
        return None
    elsewhere = SpreadRanks(spread, plan)
    return Runner(elsewhere.run, elsewhere.ran_at.were_parted)


class Forecast:
    """Says once how long the ranks are going to take, where that is long, and which options make it shorter.

    ``chosen`` says that the ranks that run are those that the user chose.
    """

    def __init__(
        self,
        dry_run: DryRun,
        say: Callable[[str], object],
        progress: Callable[[int, int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        chosen: bool = False,
    ) -> None:
        self._dry_run, self._say, self._progress, self._clock = dry_run, say, progress, clock
        self._chosen = chosen
        self._begin = clock()
        self._is_said = False

    def update(self, done: int, total: int) -> None:
        """Take the number of ranks that have ended; the same is passed on."""
        if self._progress is not None:
            self._progress(done, total)
        seconds = (self._clock() - self._begin) / done * (total - done) if done else 0.0
        if not self._is_said and seconds > _LONG_SECONDS:
            self._is_said = True
            self._say(
                f"{total - done} more ranks take about {math.ceil(seconds / 60)} minutes"
                f"{''.join(f'; {way}' for way in self._shorter())}"
            )

    def _shorter(self) -> Iterator[str]:
        if self._dry_run.steps is None:
            yield "--steps 1 ends each after one step of its optimiser"
        if not self._dry_run.fake_tensors:
            yield "--fake-tensors leaves out the computation of large tensors"
        if not self._chosen:
            yield "--ranks 0-7 runs only those"


def _serve(request: DryRunRequest, meeting: Rendezvous) -> int:
    # The ranks' files are sent to the first process, which may not share this one's disk.
    with tempfile.TemporaryDirectory(prefix="simcoll-") as folder:
        dry_run = replace(request.dry_run, folder=Path(folder))
        import_for_ranks(dry_run)
        return SharedDryRun(meeting, _plan(request.plan, meeting)).serve(dry_run)


def _plan(plan: DryRunPlan, meeting: Rendezvous | None) -> DryRunPlan:
    beside = 1 if meeting is None else meeting.job.beside
    return replace(plan, jobs=plan.jobs or max(1, cores() // beside))
