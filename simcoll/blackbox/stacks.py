"""Requests and reads the stacks of a rank's threads from outside, even of one in C++ that holds the GIL.

A rank has Python's ``faulthandler`` write its stacks into ``rank00000.stack`` on a real-time signal that
nothing else uses. The handler runs in C and needs no GIL. The file is there only while the handler is: without it the
signal would end the process. The handler reads the frames of threads that may run meanwhile, and may fault where they
have gone; ``_stacks.c``, where it was compiled, keeps the process alive then.

SIGUSR1 has a process write them as well, in C too. The signal is never taken from a program. None of this shows in
``signal.getsignal``, where frameworks look whether the signal is free for their own handler (Lightning does, before it
requeues a job under Slurm), and a handler that is installed later replaces this one. So nothing here may be installed
twice: ``faulthandler`` is given one descriptor, once, and the file beneath it is exchanged.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import linecache
import os
import platform
import re
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from simcoll.core.io import open_at_once
from simcoll.core.native import native
from simcoll.core.rank_local import ProcessOwned
from simcoll.core.record import UNKNOWN_SOURCE, Source
from simcoll.core.source_roots import OWN, Roots, line_of_stack, own_roots

STACK_SUFFIX = ".stack"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_LIMIT = 4 << 20
_ANSWER_SECONDS = 1.0
_PIECE_SECONDS = 0.02
_AWAITING = re.compile(r"\bwait|\.result\(|\.synchronize\(")

_CONNECTING = "own_connection"
"""The function that connects to the store (:mod:`simcoll.proof.store`)."""

_LOST = "simcoll: a thread changed its stack while it was written: no stacks of this process are written any more"
"""The line that stands for the stacks of a process, once they could not be read."""

_open: dict[Path, IO[str]] = {}
_unwatched: dict[Path, int] = {}
"""The files that a recorder has offered, which no monitor counts or removes, and the process of each."""


def _signal_number() -> int | None:
    first = getattr(signal, "SIGRTMIN", None)
    return None if first is None else first + 9


def offer_stacks(path: Path) -> None:
    """Have this process write its stacks into ``path`` when it is asked to; does nothing where that cannot be."""
    number = _signal_number()
    if number is None or path in _open or signal.getsignal(number) is not signal.SIG_DFL:
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = draft.open("a", encoding="utf-8")
        _register(number, file.fileno())
        draft.replace(path)
    except (OSError, RuntimeError, ValueError):
        # A report without stacks is better than a job without a report.
        draft.unlink(missing_ok=True)
        return
    # faulthandler keeps the descriptor, not the file.
    _open[path] = file


def _register(number: int, descriptor: int) -> None:
    """Have this process write its stacks to a descriptor on a signal."""
    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    if (compiled := native("simcoll.blackbox._stacks")) is not None:
        compiled.guard(number, descriptor, f"{_LOST}\n")


def offer_recorded_stacks(path: Path) -> None:
    """Do the same for a recording process without simcoll's launcher, which removes the file itself when it ends."""
    if path not in _open:
        offer_stacks(path)
        _unwatched[path] = os.getpid()


def withdraw_stacks() -> None:
    """The process ends: remove what :func:`offer_recorded_stacks` made, unless another process has taken its name."""
    for path, pid in _unwatched.items():
        # ValueError: the file was closed meanwhile.
        with contextlib.suppress(OSError, KeyError, ValueError):
            if pid == os.getpid() and os.path.samestat(os.fstat(_open[path].fileno()), path.stat()):
                path.unlink()


def offer_rank_stacks() -> None:
    """The same for a rank of the launcher from its very beginning: it may hang before it makes any call."""
    out, rank = os.environ.get("SIMCOLL_STACKS"), os.environ.get("RANK", "")
    if out and rank.isdecimal() and len(rank) < 10:
        # Child processes of the rank are not ranks.
        del os.environ["SIMCOLL_STACKS"]
        offer_stacks(stack_path(Path(out), int(rank)))


def stack_path(folder: Path, rank: int) -> Path:
    """The file into which a rank's stacks are written."""
    return folder / f"rank{rank:05d}{STACK_SUFFIX}"


def ask(pid: int) -> None:
    """Ask a process for its stacks; does nothing if it has not offered them, or no longer does."""
    number = _signal_number()
    if number is None or not catches(pid, number):
        return
    thread = _undisturbed(pid)
    if thread is not None and ctypes.CDLL(None).syscall(_SYSTEM_CALLS["tgkill"], pid, thread, number) == 0:
        return
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


_TABLES = {
    "x86_64": {"tgkill": 234, "futex": 202, "cut short": {7, 23, 34, 35, 230, 232, 270, 271, 281, 441}},
    "aarch64": {"tgkill": 131, "futex": 98, "cut short": {22, 72, 73, 101, 115, 441}},
}
_SYSTEM_CALLS: Mapping[str, Any] = _TABLES.get(platform.machine(), {})
"""Numbers of system calls. A signal cuts short poll, select, epoll_wait, nanosleep, pause and their like: signal(7)."""


def await_stacks(paths: Collection[Path]) -> None:
    """Wait, not for long, until every file has a text that grows no more: a stack is written piece by piece."""
    before: list[int] = []
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        sizes = [_size(path) for path in paths]
        if all(sizes) and sizes == before:
            return
        before = sizes
        time.sleep(_PIECE_SECONDS)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _undisturbed(pid: int) -> int | None:
    """The thread that is to answer in place of a main thread that sleeps in C: the signal would end its sleep.

    Waiting for a lock goes on after a signal. None where the main thread may answer itself, or no other thread can.
    """
    if not _SYSTEM_CALLS or _system_call(pid, pid) not in _SYSTEM_CALLS["cut short"]:
        return None
    try:
        threads = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return None
    return next((one for one in threads if one != pid and _system_call(pid, one) == _SYSTEM_CALLS["futex"]), None)


def _system_call(pid: int, thread: int) -> int | None:
    """The number of the system call in which a thread sits; None where it runs, or the kernel does not say."""
    try:
        first = Path(f"/proc/{pid}/task/{thread}/syscall").read_text(encoding="ascii").split(maxsplit=1)[0]
    except (OSError, IndexError):
        return None
    return int(first) if first.isdecimal() else None


def catches(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal, which would end it otherwise.

    A rank may be the child of a script that the launcher started, and handlers end with the interpreter.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread's frames, innermost first, and the folders of their process."""

    frames: tuple[Source, ...]
    roots: Roots = field(default_factory=own_roots)

    def place(self) -> Source | None:
        """The innermost line of the user's own code, else of an installed package's; None where there is neither."""
        place = line_of_stack((self.roots.kind_of(frame.file), frame) for frame in self.frames)
        return None if place is UNKNOWN_SOURCE else place

    def waits_in_torch(self) -> bool:
        """True if the thread is inside torch, or in a call that waits; saving or loading a file is no waiting."""
        saving = [os.path.join(folder, _SAVING) for folder in self.roots.torch]
        if not self.frames or any(os.path.realpath(frame.file) in saving for frame in self.frames):
            return False
        if self.roots.is_torch_or_simcoll(self.frames[0].file):
            return True
        return bool(_AWAITING.search(self.frames[0].code))

    def connects(self) -> bool:
        """True if a connection that simcoll makes, and not another rank, holds up a call of the program."""
        if not self.frames or self.frames[0].function != _CONNECTING:
            return False
        return os.path.realpath(self.frames[0].file).startswith(self.roots.simcoll)

    def works_for_user(self) -> bool:
        """True if a thread beside the main one has something of the user's to do, as far as its frames say."""
        return any(self.roots.kind_of(frame.file) == OWN for frame in self.frames) and not self.waits_in_torch()


_SAVING = "serialization.py"
"""torch's file that saves and loads others."""


def read_stacks(path: Path, roots: Roots | None = None) -> list[Stack]:
    """The threads as of the last request to a process, the main thread last; empty where nothing was written.

    ``roots`` are the folders of that process; by default it has those of this one.
    """
    try:
        with open_at_once(path) as file:
            lines = file.read(_LIMIT).decode(errors="replace").splitlines()
    except OSError:
        return []
    if _LOST in lines:
        # What stands before it has no end.
        return []
    threads: list[list[Source]] = []
    for line in lines:
        if _THREAD.match(line):
            threads.append([])
        elif threads and (found := _FRAME.match(line)) is not None:
            file_name, number = found["file"], int(found["line"])
            text = linecache.getline(file_name, number).strip()
            threads[-1].append(Source(file_name, number, found["function"], text))
    return [Stack(tuple(frames), roots or own_roots()) for frames in threads]


DUMP_SUFFIX = ".stacks.txt"

TRACEBACK_SUFFIX = ".traceback.txt"
"""Of the file with the error that ended a rank, where another rank has printed the same."""

_NUMBER = getattr(signal, "SIGUSR1", None)


class _Answer(ProcessOwned):
    """The target of stacks on the signal: the descriptor that ``faulthandler`` has, and the file that it leads to."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self.path: Path | None = None
        super().__init__()

    def lead_to(self, path: str | Path, flags: int, heading: str = "") -> None:
        """Exchange the file that the descriptor leads to; raises OSError."""
        target = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            os.write(target, heading.encode(errors="backslashreplace"))
            os.dup2(target, self.descriptor or 0, inheritable=False)
        finally:
            os.close(target)

    def lead_nowhere(self) -> None:
        """Drop all that is written from here on."""
        self.path = None
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                self.lead_to(os.devnull, os.O_WRONLY)

    def forked(self) -> None:
        """A forked child is no rank, or another one; nor may it keep its parent's stderr open."""
        self.lead_nowhere()


_answer = _Answer()


def answer_signal() -> None:
    """Have SIGUSR1 write this process's stacks, to stderr until :func:`answer_into`, unless the signal is in use.

    It stays so to the end of the process, as by default the signal ends it.
    """
    if _NUMBER is None or _answer.descriptor is not None:
        return
    if signal.getsignal(_NUMBER) is not signal.SIG_DFL or catches(os.getpid(), _NUMBER):
        return
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        descriptor = _open_stderr()
        _register(_NUMBER, descriptor)
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
    """Remove a file of stacks that has nothing but its heading, if there is one."""
    with contextlib.suppress(OSError):
        with path.open("rb") as file:
            file.readline()
            unused = not file.read(1)
        if unused:
            path.unlink()


def ask_for_dump(pid: int) -> None:
    """Pass SIGUSR1 on to a process, unless it would end that."""
    if _NUMBER is not None and catches(pid, _NUMBER):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, _NUMBER)


def _open_stderr() -> int:
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
