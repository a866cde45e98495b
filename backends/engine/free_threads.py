"""Ranks as threads that somebody else has started, and that run all at once: PyTorch's own test harness does so.

Threads whose waits end at one moment are woken one by the other, first come, first served: woken all at once, they
would all wait for the interpreter's lock, at a price that grows with their number.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from simcoll.backends.engine.parking import LateError, Place

_LONGEST = 1e6
"""Seconds; a lock of Python's does not wait for longer than ``threading.TIMEOUT_MAX``."""


class FreeThreads:
    """Nobody decides who runs, so that nobody knows when the ranks are stuck: a wait ends at its timeout."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.on_stuck: Callable[[], None] = lambda: None
        self._line: deque[Place] = deque()
        self._passing = False

    def check_own(self, rank: int) -> None:
        """Nobody knows whose a thread is."""

    def place(self, rank: int) -> Place:
        """Where the calling thread is going to wait."""
        return Place(rank)

    def wait(self, place: Place, timeout: float | None = None) -> None:
        """Wait until :meth:`wake`; raises LateError after ``timeout`` seconds (None: never)."""
        if not place.baton.acquire(timeout=-1 if timeout is None else min(timeout, _LONGEST)):
            with self.lock:
                if not place.woken:
                    place.woken = True
                    raise LateError(f"rank {place.rank} has waited for {timeout:g} s, and nobody came to end its wait")
            # Its turn is on its way, and is waited for.
            place.baton.acquire()
        self._wake_next()

    def wake(self, place: Place) -> None:
        """End the wait at a place."""
        if place.woken:
            return
        place.woken = True
        self._line.append(place)
        if not self._passing:
            self._passing = True
            self._wake_next()

    def _wake_next(self) -> None:
        try:
            place = self._line.popleft()
        except IndexError:
            with self.lock:
                if not self._line:
                    self._passing = False
                    return
                place = self._line.popleft()
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
