"""Runs ranks of a dry run side by side, each in a child that is forked from this process when a core is free."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from simcoll.blackbox.stacks import stack_path
from simcoll.core.io import make_sparse
from simcoll.dryrun.rank.main import DryRun, become_lone_rank, wanted_memory
from simcoll.dryrun.subreaper import start_kept
from simcoll.recorder.recorder import box_name

_COUNTERS = Path("/proc/vmstat")
_LOOK_SECONDS = 0.01
_GRACE_SECONDS = 5.0
"""How long a keeper has to end what its rank has started."""


@dataclass(frozen=True, slots=True)
class LoneEnd:
    """How a rank's process ended: ``exit_code`` is negative for a signal; ``overdue`` if it was ended for its time.

    ``short`` is whether it failed and had asked for memory beyond its limit, or was killed as the system had none left.
    """

    exit_code: int
    time_ns: int
    overdue: bool = False
    short: bool = False


def run_lone_ranks(
    dry_run: DryRun,
    ranks: Iterable[int],
    *,
    timeout: float,
    jobs: int,
    done: Callable[[int], object] = lambda count: None,
) -> dict[int, LoneEnd]:
    """Run these ranks, ``jobs`` at a time, each for at most ``timeout`` seconds; ``done`` hears how many have ended.

    A rank is taken from ``ranks`` when it is started.
    """
    waiting, more = iter(ranks), True
    kills = memory_kills()
    running, ends = dict[int, tuple[int, float]](), dict[int, LoneEnd]()
    try:
        while more or running:
            while more and len(running) < jobs:
                rank = next(waiting, None)
                more = rank is not None
                if rank is not None:
                    running[_started(dry_run, rank)] = rank, time.monotonic() + timeout
            if ended := _ended(running):
                for pid, end in ended.items():
                    rank = running.pop(pid)[0]
                    ends[rank] = _tidied(dry_run, rank, end, kills)
                done(len(ends))
            elif running:
                time.sleep(_LOOK_SECONDS)
    finally:
        _end_all(running)
    return ends


def _started(dry_run: DryRun, rank: int) -> int:
    return start_kept(functools.partial(become_lone_rank, dry_run, rank))


def _ended(running: Mapping[int, tuple[int, float]]) -> dict[int, LoneEnd]:
    """The processes that have ended by now, and those that have to end now."""
    found = {}
    for pid, (_, limit) in running.items():
        if time.monotonic() > limit:
            _end(pid)
            found[pid] = LoneEnd(-signal.SIGKILL, time.time_ns(), overdue=True)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            found[pid] = LoneEnd(os.waitstatus_to_exitcode(status), time.time_ns())
    return found


def memory_kills() -> int | None:
    """How many processes Linux has killed for want of memory since it started; None where it does not tell."""
    with contextlib.suppress(OSError):
        for line in _COUNTERS.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _tidied(dry_run: DryRun, rank: int, end: LoneEnd, kills: int | None) -> LoneEnd:
    # Where its stacks would have gone, had a monitor asked for them.
    stack_path(dry_run.folder, rank).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        make_sparse(dry_run.folder / box_name(rank))  # there may be thousands
    if not end.exit_code or end.overdue:
        return end
    if end.exit_code == -signal.SIGKILL and (kills is None or kills != memory_kills()):
        return LoneEnd(end.exit_code, end.time_ns, short=True)
    if dry_run.memory is None:
        return end
    return LoneEnd(end.exit_code, end.time_ns, short=wanted_memory(dry_run, rank))


def _end_all(running: Iterable[int]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGTERM)
    for pid in running:
        _end(pid)


def _end(pid: int) -> None:
    """End a keeper, its rank, and what that has started."""
    os.kill(pid, signal.SIGTERM)
    limit = time.monotonic() + _GRACE_SECONDS
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(_LOOK_SECONDS)
