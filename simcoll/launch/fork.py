"""Forks this process, and runs the start and exit steps of a fresh interpreter in the child."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import NoReturn

import torch

from simcoll.core.process import die_with_parent


def fork(ends_by: signal.Signals = signal.SIGKILL) -> int:
    """Fork this process; the child ends with its parent, by this signal, and leaves Ctrl-C to it."""
    with warnings.catch_warnings(), _held_back(signal.SIGINT, signal.SIGTERM):
        # Python 3.12 warns where there are threads: those of torch, which the ranks do without.
        warnings.simplefilter("ignore", DeprecationWarning)
        parent, pid = os.getpid(), os.fork()
    if pid == 0:
        die_with_parent(parent, ends_by)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return pid


@contextlib.contextmanager
def _held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Handlers of these signals run afterwards: what they raise in functions that run at a fork is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in numbers}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


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
