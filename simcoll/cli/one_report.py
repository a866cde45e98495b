"""One report in a folder that several nodes share and report on by themselves, because node 0 does not.

Each of them judges what is there when its own ranks have ended: the one that knows how most ranks ended has the report.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcoll.core.clock import written_ns
from simcoll.core.io import open_at_once
from simcoll.verifier.findings.finding import Report


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait for the other node that reads or writes the folder's report; where nothing can be locked, go on."""
    fd = None
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def is_told_already(report: Report, folder: Path, since_ns: int) -> bool:
    """True if the folder's report, of this run, knows the ends of all ranks whose ends this one knows."""
    path = folder / "report.json"
    mine = {one.rank for one in report.ranks if one.exit_code is not None}
    try:
        with open_at_once(path) as file:
            if written_ns(os.fstat(file.fileno())) < since_ns:
                return False
            ranks = json.load(file)["ranks"]
        told = {one["rank"] for one in ranks if one["exit_code"] is not None}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return mine <= told
