"""What a command costs: seconds, the processors' seconds, and the memory that it and its workers hold together.

The memory is PSS, looked at twenty times a second: pages that processes share count once.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took: seconds, seconds of all processors, and the most memory (MiB) that it held.

    ``ended`` is False where it was killed at its time limit: then it would have taken at least so much.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float
    ended: bool
    exit_code: int
    output: bytes


NOTHING = Cost(0.0, 0.0, 0.0, True, 0, b"")
"""Of a command that has not run yet."""


def cost(command: Sequence[str], cores: int, limit_seconds: float | None = None) -> Cost:
    """Run one command on so many cores to its end, or to the limit."""
    begin, peak, over = time.perf_counter(), 0.0, False
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, preexec_fn=lambda: _on_cores(cores))
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, _tree_mib(process.pid))
            if limit_seconds is not None and not over and time.perf_counter() - begin > limit_seconds:
                over = True
                process.kill()
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        output.seek(0)
        text = output.read()
    cpu_seconds = ended[2].ru_utime + ended[2].ru_stime
    return Cost(seconds, cpu_seconds, peak, not over, process.returncode, text)


def _on_cores(count: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def _tree_mib(pid: int) -> float:
    """What a process and its descendants hold now."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            left += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except (OSError, ValueError):
            continue
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024
