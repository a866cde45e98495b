"""Processes: the end of a child, of a parent and of orphans, the signal that ended one in words, cores, and garbage.

Children that ``subprocess`` has started are ended through their ``Popen``, which reaps them itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

STOPPED = ("T", "t")
"""The states of a process that a signal or a debugger holds."""

_LOOK_SECONDS = 0.01

_RARELY = 1_000_000
"""So many objects more than were freed have Python look for cycles among the young ones; it is 700 otherwise."""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Have Python look for cyclic garbage rarely: for work that makes many objects and keeps them, such as the records
    of thousands of ranks, a sixth of whose time it takes otherwise.
    """
    before = gc.get_threshold()
    # A threshold of 0 is a collector that the program has turned off.
    gc.set_threshold(before[0] and max(before[0], _RARELY), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def die_with_parent(parent: int, ends_by: signal.Signals) -> None:
    """Have the kernel end this process, by this signal, when the one that started it ends; at once where it has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ends_by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Have the kernel give this process the children of a child that died (prctl(2)), not to init."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(pid: int, seconds: float = 0.0) -> int:
    """Wait up to ``seconds`` for a child to end, then kill it; returns its exit code, negative for a signal."""
    limit = time.monotonic() + seconds
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < limit:
        time.sleep(_LOOK_SECONDS)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def kill(pid: int) -> None:
    """Kill a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_children(spared: Set[int] = frozenset()) -> None:
    """Kill all children but the ``spared``, until there are none: a subreaper gets those of the killed, too."""
    while found := children() - spared:
        for pid in found:
            kill(pid)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children(of: int | None = None) -> set[int]:
    """The processes whose parent this process is, or ``of``; none where /proc does not show them."""
    with contextlib.suppress(OSError):
        parent = os.getpid() if of is None else of
        return {pid for pid, stat in _everyone().items() if stat.parent == parent}
    return set()


class ProcessStat(NamedTuple):
    """What /proc/PID/stat says of a process or a thread (proc(5)); times are in seconds."""

    state: str
    parent: int
    used: float
    """CPU time of one core."""
    started: float
    """Since the host was booted."""


def stat_of(pid: int | str) -> ProcessStat | None:
    """What /proc says of a process, or of ``PID/task/TID``; None where there is none."""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # the name may hold anything
        ticks = os.sysconf("SC_CLK_TCK")
        used, started = int(fields[11]) + int(fields[12]), int(fields[19])
        return ProcessStat(fields[0], int(fields[1]), used / ticks, started / ticks)
    return None


def processes_below(root: int) -> list[ProcessStat]:
    """A process and all that it has started, and these have, as they are now."""
    everyone = _everyone()
    found, parents = list[ProcessStat](), {root}
    while parents:
        found += [everyone[pid] for pid in parents]
        parents = {pid for pid, stat in everyone.items() if stat.parent in parents}
    return found


def _everyone() -> dict[int, ProcessStat]:
    return {int(name): stat for name in os.listdir("/proc") if name.isdecimal() and (stat := stat_of(name))}


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
