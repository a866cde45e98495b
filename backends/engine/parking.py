"""Where a thread of a rank waits until somebody wakes it, and how ranks that share a process run beside each other.

Ranks as threads that somebody else has started, and that run all at once: PyTorch's own test harness does so.

Threads whose waits end at one moment are woken one by the other, first come, first served: woken all at once, they
would all wait for the interpreter's lock, at a price that grows with their number.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Protocol

_LONGEST = 1e6
"""Seconds; a lock of Python's does not wait for longer than ``threading.TIMEOUT_MAX``."""


class FreeThreads:
    """Nobody decides who runs, so that nobody knows when the ranks are stuck: a wait ends at its timeout."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.on_stuck: Callable[[], None] = lambda: None
        self._line: deque[ParkingPlace] = deque()
        self._passing = False

    def check_own(self, rank: int) -> None:
        """Nobody knows whose a thread is."""

    def place(self, rank: int) -> ParkingPlace:
        """Where the calling thread is going to wait."""
        return ParkingPlace(rank)

    def wait(self, place: ParkingPlace, timeout: float | None = None) -> None:
        """Wait until :meth:`wake`; raises LateError after ``timeout`` seconds (None: never)."""
        if not place.baton.acquire(timeout=-1 if timeout is None else min(timeout, _LONGEST)):
            with self.lock:
                if not place.woken:
                    place.woken = True
                    raise LateError(f"rank {place.rank} has waited for {timeout:g} s, and nobody came to end its wait")
            # Its turn is on its way, and is waited for.
            place.baton.acquire()
        self._wake_next()

    def wake(self, place: ParkingPlace) -> None:
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


class StuckError(RuntimeError):
    """A rank waits for something that no rank is left to do; ``absent`` are the ranks (global) that did not come."""

    absent: tuple[int, ...] = ()


class LateError(StuckError):
    """A rank has waited for as long as it was willing to."""


class ParkingPlace:
    """One wait of one thread of a (global) rank."""

    __slots__ = ("baton", "beside", "deadline", "late", "rank", "released", "stuck", "woken")

    def __init__(self, rank: int, *, woken: bool = False) -> None:
        self.rank = rank
        self.woken = woken
        self.released = False
        self.stuck = False
        self.beside = False
        self.deadline: float | None = None
        self.late = False
        self.baton = Lock()
        self.baton.acquire()


class RankThreads(Protocol):
    """Ranks as threads. ``lock`` guards what they share: :meth:`place` and :meth:`wake` are called under it."""

    on_stuck: Callable[[], None]

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by whoever looks at, or changes, what the ranks share."""
        ...

    def check_own(self, rank: int) -> None:
        """Raise RuntimeError where the calling thread is known to be another rank's."""
        ...

    def place(self, rank: int) -> ParkingPlace:
        """Where the calling thread, of that rank, is going to wait."""
        ...

    def wait(self, place: ParkingPlace, timeout: float | None = None) -> None:
        """Wait until somebody wakes the place, without the lock; raises :class:`StuckError` where nobody will, or
        nobody has for ``timeout`` seconds.
        """
        ...

    def wake(self, place: ParkingPlace) -> None:
        """End the wait at a place."""
        ...

    def pause(self, rank: int) -> None:
        """A moment at which another rank may go on instead; without the lock."""
        ...

    def beside(self, rank: int) -> bool:
        """Whether anybody may run meanwhile who waits for no turn; under the lock."""
        ...

    def give_way(self, rank: int) -> bool:
        """Let others go on for a moment; whether there may be any. Without the lock."""
        ...
