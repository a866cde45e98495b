"""The time of records: the wall clock as it stood when a job began on a host, continued by the monotonic clock.

A wall clock that is set while the job runs, by a second or an hour, then changes neither the times of its records nor
their order. ``simcoll run`` hands its clock on to the processes below it, ranks that are started again included.
"""

from __future__ import annotations

import os
import time

VARIABLE = "SIMCOLL_CLOCK"
"""The environment's word on how far this clock is ahead of the monotonic one, and on which boot of which host."""

_MEASURED = 8
"""Measurements, of which the quickest is taken: a process may have to wait for a core between two clocks."""

_SET_BACK_NS = 10**8
"""Two looks at clocks may be less than that apart, also where a process waits for a core between them."""


def now_ns() -> int:
    """The time, in nanoseconds since 1970."""
    return time.monotonic_ns() + AHEAD_NS


def written_ns(file: os.stat_result) -> int:
    """The time at which a file was last written, or later where the wall clock, that of files, was set back since."""
    back = now_ns() - time.time_ns()
    return file.st_mtime_ns + (back if back >= _SET_BACK_NS else 0)


def stated() -> dict[str, str]:
    """The variable for processes that are to have the same clock."""
    return {VARIABLE: f"{_boot()} {AHEAD_NS}"}


def _boot() -> str:
    """The name of this boot of this host; empty where the kernel gives none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _ahead_ns() -> int:
    """What the environment says, if it speaks of this boot; or else how it is now."""
    boot, _, ahead = os.environ.get(VARIABLE, "").partition(" ")
    if boot and boot == _boot() and ahead.isascii() and ahead.isdecimal() and len(ahead) < 20:
        return int(ahead)
    return min(_measured() for _ in range(_MEASURED))[1]


def _measured() -> tuple[int, int]:
    """How far the wall clock is ahead, as measured within a time, in nanoseconds, which comes first."""
    before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return after - before, wall - (before + after) // 2


AHEAD_NS = _ahead_ns()
