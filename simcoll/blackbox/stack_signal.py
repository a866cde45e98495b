"""SIGUSR1 has a process write the stacks of its threads: in C, so that a rank that holds the GIL answers as well.

The signal is never taken from a program. Nothing of this shows in ``signal.getsignal``, where frameworks look whether
the signal is free for their own handler (Lightning does, before it requeues a job under Slurm), and a handler that is
installed later replaces this one. So nothing here may be installed twice: ``faulthandler`` is given one descriptor,
once, and what that leads to is exchanged beneath it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

from simcoll.blackbox.stacks import catches

SUFFIX = ".stacks.txt"

_NUMBER = getattr(signal, "SIGUSR1", None)
_descriptor: int | None = None
_path: Path | None = None


def answer_signal() -> None:
    """Have SIGUSR1 write this process's stacks, to stderr until :func:`answer_into`; not where the signal is in use.

    It stays so to the end of the process, as by default the signal ends it.
    """
    global _descriptor
    if _NUMBER is None or _descriptor is not None:
        return
    if signal.getsignal(_NUMBER) is not signal.SIG_DFL or catches(os.getpid(), _NUMBER):
        return
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        descriptor = _open_stderr()
        faulthandler.register(_NUMBER, file=descriptor, all_threads=True, chain=False)
        _descriptor = descriptor


def answer_into(path: Path, heading: str) -> None:
    """Send the stacks to the end of a new file with this heading; an older file of that name is replaced."""
    global _path
    if _descriptor is None or path == _path:
        return
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        _lead_to(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, heading)
        _path = path


def answer_no_more() -> None:
    """The rank ends: send the stacks nowhere, and remove a file that never held any."""
    global _path
    if _path is not None:
        remove_unused(_path)
    _path = None
    _lead_nowhere()


def remove_unused(path: Path) -> None:
    """Remove a file of stacks that has nothing but its heading; nothing where there is none."""
    with contextlib.suppress(OSError):
        with path.open("rb") as file:
            file.readline()
            unused = not file.read(1)
        if unused:
            path.unlink()


def ask_for_dump(pid: int) -> None:
    """Pass SIGUSR1 on to a process; nothing where it would end it."""
    if _NUMBER is not None and catches(pid, _NUMBER):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, _NUMBER)


def _open_stderr() -> int:
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _lead_to(path: str | Path, flags: int, heading: str = "") -> None:
    target = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        os.write(target, heading.encode(errors="backslashreplace"))
        os.dup2(target, _descriptor or 0, inheritable=False)
    finally:
        os.close(target)


def _lead_nowhere() -> None:
    if _descriptor is not None:
        with contextlib.suppress(OSError):
            _lead_to(os.devnull, os.O_WRONLY)


def _forked() -> None:
    """A forked child is no rank, or another one; nor may it keep its parent's stderr open."""
    global _path
    _path = None
    _lead_nowhere()


os.register_at_fork(after_in_child=_forked)
