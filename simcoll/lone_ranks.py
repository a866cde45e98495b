"""Runs ranks of a dry run side by side, each in a child that is forked from this process when a core is free."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simcoll.forked_rank import fork
from simcoll.lone_rank import DryRun, become_lone_rank

_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class LoneEnd:
    """How a rank's process ended: ``exit_code`` is negative for a signal; ``overdue`` if it was ended for its time."""

    exit_code: int
    time_ns: int
    overdue: bool = False


def run_lone_ranks(
    dry_run: DryRun,
    ranks: Iterable[int],
    *,
    timeout: float,
    jobs: int,
    done: Callable[[int], object] = lambda count: None,
) -> dict[int, LoneEnd]:
    """Run these ranks, ``jobs`` at a time, each for at most ``timeout`` seconds; ``done`` hears how many have ended."""
    waiting, running, ends = list(ranks)[::-1], dict[int, tuple[int, float]](), dict[int, LoneEnd]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                rank = waiting.pop()
                running[_started(dry_run, rank)] = rank, time.monotonic() + timeout
            if ended := _ended(running):
                for pid, end in ended.items():
                    ends[running.pop(pid)[0]] = end
                done(len(ends))
            else:
                time.sleep(_LOOK_SECONDS)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return ends


def _started(dry_run: DryRun, rank: int) -> int:
    pid = fork()
    if pid == 0:
        become_lone_rank(dry_run, rank)
    return pid


def _ended(running: dict[int, tuple[int, float]]) -> dict[int, LoneEnd]:
    """The processes that have ended by now, and those that have to end now."""
    found = {}
    for pid, (_, limit) in running.items():
        over = time.monotonic() > limit
        if over:
            os.kill(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, 0 if over else os.WNOHANG)
        if ended:
            found[pid] = LoneEnd(os.waitstatus_to_exitcode(status), time.time_ns(), over)
    return found
