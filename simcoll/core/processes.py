"""The processes of the ranks of this host, as /proc shows them: gone, stopped, computing or asleep."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.core.process import STOPPED, ProcessStat, stat_of

_LEAST_BUSY = 0.1
"""The share of one core from which on a process computes."""

_LATER = 1.0
"""Seconds by which a process must have started later to be another one."""

_SHORTEST = 0.2
"""Seconds between two looks that show whether a process computes: the kernel counts in hundredths."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One process at one moment: its state in /proc, empty where it is gone, and its CPU time, in seconds of a core."""

    state: str
    used: float
    moment: float
    share: float | None = None
    """The CPU time since it was seen before, of one core; None where that was never, or just now."""


class Processes:
    """Looks at processes again and again. A process of another host is neither gone, stopped, busy nor asleep."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._seen: dict[int, _Seen] = {}

    def look(self, pids: Mapping[int, int]) -> None:
        """Look at these processes of this host, and forget all others.

        Each has the moment (ns of the monotonic clock, 0: not known) by which it had started: one that started later is
        another process, which has got its number.
        """
        readable = stat_of(os.getpid()) is not None
        self._seen = {pid: self._look(pid, by) for pid, by in pids.items()} if readable else {}

    def gone(self, host: str, pid: int) -> bool:
        """True if it has ended."""
        seen = self._of(host, pid)
        return seen is not None and seen.state in ("", "Z", "X")

    def stopped(self, host: str, pid: int) -> bool:
        """True if a signal or a debugger holds it."""
        seen = self._of(host, pid)
        return seen is not None and seen.state in STOPPED

    def busy(self, host: str, pid: int) -> bool:
        """True if it has computed since it was seen before."""
        seen = self._of(host, pid)
        return seen is not None and seen.share is not None and seen.share > _LEAST_BUSY

    def asleep(self, host: str, pid: int) -> bool:
        """True if its main thread sleeps, and none has computed since it was seen before."""
        seen = self._of(host, pid)
        return seen is not None and seen.state == "S" and seen.share is not None and seen.share <= _LEAST_BUSY

    def _of(self, host: str, pid: int) -> _Seen | None:
        return self._seen.get(pid) if host == self.host else None

    def _look(self, pid: int, by_ns: int) -> _Seen:
        now, stat, before = time.monotonic(), stat_of(pid), self._seen.get(pid)
        if stat is None or (by_ns and _started(stat) > by_ns / 1e9 + _LATER):
            return _Seen("", 0.0, now)
        if before is None:
            return _Seen(stat.state, stat.used, now)
        if now - before.moment < _SHORTEST:
            return _Seen(stat.state, before.used, before.moment, before.share)
        return _Seen(stat.state, stat.used, now, (stat.used - before.used) / (now - before.moment))


def _started(stat: ProcessStat) -> float:
    """The moment at which a process started, by the monotonic clock, which a sleeping host stops; or before."""
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return stat.started - asleep
