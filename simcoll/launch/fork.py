"""Forks this process, and runs the start and exit steps of a fresh interpreter in the child."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch

from simcoll.core.process import die_with_parent


def fork(ends_by: signal.Signals = signal.SIGKILL) -> int:
    """Fork this process; the child ends with its parent, by this signal, and leaves Ctrl-C to it."""
    parent, pid = os.getpid(), 0
    try:
        with warnings.catch_warnings(), _held_back(signal.SIGINT, signal.SIGTERM):
            # Python 3.12 warns where there are threads: those of torch, which the ranks do without.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except BaseException:
        if pid:  # the caller does not come to know of the child
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    if pid == 0:
        die_with_parent(parent, ends_by)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return pid


@contextlib.contextmanager
def _held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Handlers of these signals run afterwards: what they raise in functions that run at a fork is lost.

    Each in the process to which the signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, int]] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_raise, came)
        for number in numbers:
            if callable(handler := signal.getsignal(number)):
                stack.callback(signal.signal, number, handler)
                signal.signal(number, lambda number, frame: came.append((os.getpid(), number)))
        yield


def _raise(came: Sequence[tuple[int, int]]) -> None:
    """Raise signals of this process, each whatever the handlers of those before raise."""
    with contextlib.ExitStack() as stack:
        for pid, number in reversed(came):
            if pid == os.getpid():
                stack.callback(signal.raise_signal, number)


def leave_parent() -> None:
    """Forget the parent's state: exit functions, the report of exceptions, torch's threads."""
    atexit._clear()
    sys.excepthook = sys.__excepthook__
    # The threads of the parent's pool are not here, and ranks share the cores anyway.
    torch.set_num_threads(1)


def end_as_interpreter(code: int) -> NoReturn:
    """End this process: threads first, then exit functions, whatever these raise."""
    try:
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    finally:
        os._exit(code)
