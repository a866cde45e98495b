"""The folder of the job to be looked at."""

from __future__ import annotations

import os
from pathlib import Path

from simcoll.blackbox.gather import boxes_below
from simcoll.errors import UsageError

DEFAULT = Path("simcoll-out")
"""Where ``simcoll run`` puts the folder of each job, named by its time."""


def job_folder(given: Path | None) -> Path:
    """The folder that was given, or else the newest one below :data:`DEFAULT`; raises UsageError where there is none.

    A folder in which no rank has written yet is a job that starts.
    """
    if given is not None:
        if not os.path.isdir(given):
            raise UsageError(f"{given}: expected the folder in which a job records (simcoll run --out, SIMCOLL_OUT)")
        return given
    below = [path for path in DEFAULT.glob("*") if os.path.isdir(path)] if os.path.isdir(DEFAULT) else []
    if not below:
        raise UsageError(f"no job has recorded in {DEFAULT}; name the folder in which one does")
    return max([path for path in below if boxes_below(path)] or below, key=lambda path: path.stat().st_mtime_ns)
