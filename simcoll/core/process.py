"""Processes: the signal that ended one in words, and Linux's actions when one ends (prctl(2))."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, ends_by: signal.Signals) -> None:
    """Have the kernel end this process, by this signal, when the one that started it ends; at once where it has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ends_by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Have the kernel give this process the children of a child that died, instead of losing them to init."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
