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
from simcoll.core.rank_local import ProcessOwned

SUFFIX = ".stacks.txt"

_NUMBER = getattr(signal, "SIGUSR1", None)


class _Answer(ProcessOwned):
    """Where the signal sends stacks: the descriptor that ``faulthandler`` has, and the file that it leads to."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self.path: Path | None = None
        super().__init__()

    def lead_to(self, path: str | Path, flags: int, heading: str = "") -> None:
        """Exchange what the descriptor leads to; raises OSError."""
        target = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            os.write(target, heading.encode(errors="backslashreplace"))
            os.dup2(target, self.descriptor or 0, inheritable=False)
        finally:
            os.close(target)

    def lead_nowhere(self) -> None:
        """Drop what is written from here on."""
        self.path = None
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                self.lead_to(os.devnull, os.O_WRONLY)

    def forked(self) -> None:
        """A forked child is no rank, or another one; nor may it keep its parent's stderr open."""
        self.lead_nowhere()


_answer = _Answer()


def answer_signal() -> None:
    """Have SIGUSR1 write this process's stacks, to stderr until :func:`answer_into`; not where the signal is in use.

    It stays so to the end of the process, as by default the signal ends it.
    """
    if _NUMBER is None or _answer.descriptor is not None:
        return
    if signal.getsignal(_NUMBER) is not signal.SIG_DFL or catches(os.getpid(), _NUMBER):
        return
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        descriptor = _open_stderr()
        faulthandler.register(_NUMBER, file=descriptor, all_threads=True, chain=False)
        _answer.descriptor = descriptor


def answer_into(path: Path, heading: str) -> None:
    """Send the stacks to the end of a new file with this heading; an older file of that name is replaced."""
    if _answer.descriptor is None or path == _answer.path:
        return
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        _answer.lead_to(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, heading)
        _answer.path = path


def answer_no_more() -> None:
    """The rank ends: send the stacks nowhere, and remove a file that never held any."""
    if _answer.path is not None:
        remove_unused(_answer.path)
    _answer.lead_nowhere()


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
