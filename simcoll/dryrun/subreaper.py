"""The process above a rank of a dry run: it ends whatever the rank has started when the rank or the dry run ends.

It is a *subreaper* (prctl(2)): orphans of the rank become its children, so that those which have left the rank's
session are found too.
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
_FAILED = 1


class _TerminatedError(BaseException):
    """SIGTERM: the rank has reached its time limit, or the dry run is over."""


def start_under_subreaper(body: Callable[[], NoReturn]) -> int:
    """Fork a subreaper, which forks a process for ``body`` and ends as that does; returns the subreaper's process id.

    SIGTERM ends both, and all that the process has started.
    """
    pid = fork(ends_by=signal.SIGTERM)
    if pid == 0:
        try:
            _supervise(body)
        finally:
            os._exit(_FAILED)
    return pid


def _supervise(body: Callable[[], NoReturn]) -> None:
    status = signal.SIGKILL.value
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends its ranks
    try:
        signal.signal(signal.SIGTERM, _raise_terminated)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        pid = fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            body()
        status = os.waitpid(pid, 0)[1]
    except _TerminatedError:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants()
        _exit_like(status)


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise _TerminatedError


def end_descendants() -> None:
    """Kill this process's children until there are none: children of a killed one become this process's."""
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
    """The parent of a process; 0 where it has ended. The name before it in the file may hold anything (proc(5))."""
    try:
        return int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _exit_like(status: int) -> NoReturn:
    """End this process with the exit code, or by the signal, of another."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the process that failed has left its own core
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
