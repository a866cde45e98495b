"""Runs ranks of a dry run in parallel, each in a child that is forked from this process when a core is free.

Each rank runs below a process that ends whatever the rank has started when the rank or the dry run ends. That process
is a *subreaper* (prctl(2)): orphans of the rank become its children, so that those which have left the rank's session
are found too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from simcoll.blackbox.stacks import ask, await_stacks, read_stacks, remove_unused, stack_path
from simcoll.core.clock import now_ns
from simcoll.core.io import make_sparse
from simcoll.core.process import adopt_orphans, children, kill_children, processes_below, reap, stat_of
from simcoll.dryrun.endings import ProcessEnd
from simcoll.dryrun.rank.main import become_rank, wanted_memory
from simcoll.dryrun.rank.script_launch import ScriptLaunch
from simcoll.dryrun.rank.settings import DryRun
from simcoll.dryrun.rank.shared_files import journal_name
from simcoll.launch.fork import fork
from simcoll.recorder.dump import stacks_name
from simcoll.recorder.recorder import box_name

_FAILED = 1


class _TerminatedError(BaseException):
    """SIGTERM: the rank has reached its time limit, or the dry run is over."""


def start_under_subreaper(body: Callable[[ScriptLaunch], NoReturn]) -> int:
    """Fork a subreaper, which forks a process for ``body`` and ends like the rank; returns the subreaper's process id.

    SIGTERM ends both, and all that the process has started.
    """
    pid = fork(ends_by=signal.SIGTERM)
    if pid == 0:
        try:
            _supervise(body, ScriptLaunch())
        finally:
            os._exit(_FAILED)
    return pid


def _supervise(body: Callable[[ScriptLaunch], NoReturn], launch: ScriptLaunch) -> None:
    status = signal.SIGKILL.value
    try:
        signal.signal(signal.SIGTERM, _raise_terminated)
        adopt_orphans()
        pid = fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            body(launch)
        status = _await_rank(pid, launch)
    except _TerminatedError:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_children()
        _exit_like(status)


def _await_rank(pid: int, launch: ScriptLaunch) -> int:
    """Wait for the process that runs the script; returns the status with which the rank has ended.

    If the script has started the rank itself, and does nothing more after its end, it waits for results of other ranks.
    """
    idle = _IdleTree(pid)
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended:
        if launch.has_ended:
            launch.release()
            if idle.seconds() > _IDLE_SECONDS:
                break
        elif launch.has_others_only and idle.seconds() > _IDLE_SECONDS:
            launch.release()
        time.sleep(_LOOK_SECONDS)
        ended, status = os.waitpid(pid, os.WNOHANG)
    return status if launch.exit_code is None else launch.exit_code << 8


class _IdleTree:
    """The time for which a process, and all that it has started, have done next to nothing but look at a queue."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._looked = self._since = time.monotonic()
        self._used, self._ran = 0.0, True

    def seconds(self) -> float:
        """The seconds since it was seen to do something; it is looked at now and then."""
        now = time.monotonic()
        if now - self._looked < _IDLE_SECONDS / 10:
            return 0.0
        seen = processes_below(self._root)
        used, runs = sum(one.used for one in seen), any(one.state in "RD" for one in seen)
        if used - self._used > _MOST_IDLE * (now - self._looked) or (runs and self._ran):
            self._since = now
        self._looked, self._used, self._ran = now, used, runs
        return now - self._since


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise _TerminatedError


def _exit_like(status: int) -> NoReturn:
    """End this process with the exit code, or by the signal, of another."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the process that failed has left its own core
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


_IDLE_SECONDS = 1.0
_MOST_IDLE = 0.25
_COUNTERS = Path("/proc/vmstat")
_LOOK_SECONDS = 0.01
_GRACE_SECONDS = 5.0
"""Seconds that a subreaper has to end the processes that its rank has started."""


def run_rank_processes(
    dry_run: DryRun,
    ranks: Iterable[int],
    *,
    timeout: float,
    jobs: int,
    done: Callable[[int], object] = lambda count: None,
) -> dict[int, ProcessEnd]:
    """Run ranks, ``jobs`` at a time, each for at most ``timeout`` seconds; ``done`` gets the number that have ended.

    A rank is taken from ``ranks`` when it is started.
    """
    waiting, more = iter(ranks), True
    kills = memory_kills()
    running, ends = dict[int, tuple[int, float]](), dict[int, ProcessEnd]()
    try:
        while more or running:
            while more and len(running) < jobs:
                rank = next(waiting, None)
                more = rank is not None
                if rank is not None:
                    running[_start(dry_run, rank)] = rank, time.monotonic() + timeout
            if ended := _ended(dry_run, running):
                for pid, end in ended.items():
                    rank = running.pop(pid)[0]
                    ends[rank] = _clean_up(dry_run, rank, end, kills)
                done(len(ends))
            elif running:
                time.sleep(_LOOK_SECONDS)
    finally:
        _end(running)
        for rank, _ in running.values():
            _remove_stacks(dry_run, rank)
    return ends


def _start(dry_run: DryRun, rank: int) -> int:
    if dry_run.files is not None:
        dry_run.files.progress.start(rank)
    return start_under_subreaper(functools.partial(become_rank, dry_run, rank))


def _ended(dry_run: DryRun, running: Mapping[int, tuple[int, float]]) -> dict[int, ProcessEnd]:
    """The processes that have ended by now, and those that reach their time limit, which are ended."""
    found = {}
    for pid, (rank, limit) in running.items():
        if time.monotonic() > limit:
            place = _place_below(pid, stack_path(dry_run.folder, rank))
            _end([pid])
            found[pid] = ProcessEnd(-signal.SIGKILL, now_ns(), timed_out=True, place=place)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            found[pid] = ProcessEnd(os.waitstatus_to_exitcode(status), now_ns())
    return found


def _place_below(subreaper: int, path: Path) -> str:
    """The line of the program at which the rank below a subreaper is, as text; empty where that cannot be learnt."""
    with contextlib.suppress(OSError, ValueError):
        os.truncate(path, 0)  # it is gone where the rank offers no stacks
        # Orphans of the rank are younger.
        ask(min((stat.started, pid) for pid in children(subreaper) if (stat := stat_of(pid)))[1])
        await_stacks([path])
        threads = read_stacks(path)
        place = threads[-1].place() if threads else None
        if place is not None:
            return f"{place.file}:{place.line} in {place.function}"
    return ""


def memory_kills() -> int | None:
    """Returns the number of processes that Linux has killed for lack of memory since boot; None where unknown."""
    with contextlib.suppress(OSError):
        for line in _COUNTERS.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _clean_up(dry_run: DryRun, rank: int, end: ProcessEnd, kills: int | None) -> ProcessEnd:
    if dry_run.files is not None:
        dry_run.files.progress.end(rank)
        remove_tree(dry_run.files.base / "layers" / journal_name(rank, dry_run.files.run))
    _remove_stacks(dry_run, rank)
    with contextlib.suppress(OSError):
        make_sparse(dry_run.folder / box_name(rank))  # there may be thousands
    if not end.exit_code or end.timed_out:
        return end
    if end.exit_code == -signal.SIGKILL and (kills is None or kills != memory_kills()):
        return ProcessEnd(end.exit_code, end.time_ns, out_of_memory=True)
    if dry_run.memory is None:
        return end
    return ProcessEnd(end.exit_code, end.time_ns, out_of_memory=wanted_memory(dry_run, rank))


def _remove_stacks(dry_run: DryRun, rank: int) -> None:
    """Remove the files for a rank's stacks that a killed process leaves; stacks that a user asked for stay."""
    stack_path(dry_run.folder, rank).unlink(missing_ok=True)
    remove_unused(dry_run.folder / stacks_name(box_name(rank)))


def remove_tree(folder: Path) -> None:
    """Remove a folder of this user's, whatever modes a program or the kernel has given to those in it."""
    for name, folders, _ in os.walk(folder):
        for one in folders:
            with contextlib.suppress(OSError):
                os.chmod(os.path.join(name, one), 0o700, follow_symlinks=False)
    shutil.rmtree(folder, ignore_errors=True)


def _end(pids: Collection[int]) -> None:
    """End subreapers, their ranks, and all that the ranks have started."""
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        reap(pid, _GRACE_SECONDS)
