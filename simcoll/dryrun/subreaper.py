"""The process above a rank of a dry run: whatever the rank has started ends with the rank, and with the dry run.

It is what orphans of the rank are handed to (a *subreaper*, prctl(2)), so that one which has left the rank's session is
found too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from simcoll.launch.fork import fork

_PR_SET_CHILD_SUBREAPER = 36
_CANNOT_KEEP = 1


class _Told(BaseException):
    """The dry run has no more time for this rank, or is over."""


def start_kept(body: Callable[[], NoReturn]) -> int:
    """Fork a keeper, which forks a process for ``body`` and ends as that does; the keeper's process id.

    SIGTERM ends both and all that the process has started.
    """
    pid = fork(ends_by=signal.SIGTERM)
    if pid == 0:
        try:
            _keep(body)
        finally:
            os._exit(_CANNOT_KEEP)
    return pid


def _keep(body: Callable[[], NoReturn]) -> None:
    status = signal.SIGKILL.value
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends its ranks
    try:
        signal.signal(signal.SIGTERM, _told)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        pid = fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            body()
        status = os.waitpid(pid, 0)[1]
    except _Told:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants()
        _end_like(status)


def _told(number: int, frame: object) -> NoReturn:
    raise _Told


def end_descendants() -> None:
    """Kill this process's children until there are none: those of a child that is gone are this process's then."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> Iterator[int]:
    own = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _parent(entry) == own:
            yield int(entry.name)


def _parent(process: Path) -> int:
    """The parent of a process; 0 where it has ended meanwhile. The name before it may hold anything (proc(5))."""
    try:
        return int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _end_like(status: int) -> NoReturn:
    """End this process with the exit code, or by the signal, of another."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the one that failed has left what there is to see
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
