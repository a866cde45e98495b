"""Ranks as threads that somebody else has started, and that run all at once: PyTorch's own test harness does so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from simcoll.backends.parking import Place, StuckError

_LONGEST = 1e6
"""Seconds; a lock of Python's does not wait for longer than ``threading.TIMEOUT_MAX``."""


class FreeThreads:
    """Nobody decides who runs, so that nobody knows when the ranks are stuck: a wait ends at its timeout."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.on_stuck: Callable[[], None] = lambda: None

    def place(self, rank: int) -> Place:
        """Where the calling thread is going to wait."""
        return Place(rank)

    def wait(self, place: Place, timeout: float | None = None) -> None:
        """Wait until :meth:`wake`; raises :class:`StuckError` after ``timeout`` seconds (None: never)."""
        if place.baton.acquire(timeout=-1 if timeout is None else min(timeout, _LONGEST)):
            return
        raise StuckError(f"rank {place.rank} has waited for {timeout:g} s, and nobody came to end its wait")

    def wake(self, place: Place) -> None:
        """End the wait at a place."""
        if not place.woken:
            place.woken = True
            place.baton.release()

    def pause(self, rank: int) -> None:
        """Threads are interrupted by the operating system alone."""

    def beside(self, rank: int) -> bool:
        """Nobody knows who runs."""
        return True

    def give_way(self, rank: int) -> bool:
        """Let the operating system run somebody else."""
        time.sleep(0)
        return True
