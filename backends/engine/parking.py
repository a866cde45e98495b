"""Parking places, at which a thread of a rank waits until another wakes it, and the interface of rank schedulers.

:class:`FreeThreads` is the scheduler for ranks whose threads were started elsewhere and all run at once, as in
PyTorch's own test harness. Threads whose waits end at one moment are woken one by the other, first come, first served:
woken all at once, they would all wait for the interpreter's lock, at a cost that grows with their number.
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
    """Ranks that the operating system schedules: a deadlock is not detected, and a wait ends at its timeout."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.on_stuck: Callable[[], None] = lambda: None
        self._line: deque[ParkingPlace] = deque()
        self._passing = False

    def check_own(self, rank: int) -> None:
        """Do nothing: the rank of a thread is not known."""

    def place(self, rank: int) -> ParkingPlace:
        """A place at which the calling thread is going to wait."""
        return ParkingPlace(rank)

    def wait(self, place: ParkingPlace, timeout: float | None = None) -> None:
        """Wait until :meth:`wake`; raises WaitTimeoutError after ``timeout`` seconds (None: never)."""
        if not place.baton.acquire(timeout=-1 if timeout is None else min(timeout, _LONGEST)):
            with self.lock:
                if not place.woken:
                    place.woken = True
                    raise wait_timeout(place.rank, timeout)
            # It has been woken meanwhile: its baton is about to be released.
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
        """Do nothing: only the operating system interrupts threads."""

    def others_may_run(self, rank: int) -> bool:
        """True: it is not known which threads run."""
        return True

    def yield_turn(self, rank: int) -> bool:
        """Let the operating system run another thread."""
        time.sleep(0)
        return True


class StuckError(RuntimeError):
    """A rank waits for something that no rank can do any more; ``absent`` are the missing ranks (global)."""

    absent: tuple[int, ...] = ()


class WaitTimeoutError(StuckError):
    """The wait of a rank has timed out."""


def wait_timeout(rank: int, seconds: float | None) -> WaitTimeoutError:
    """The error of a (global) rank that has waited for so many seconds."""
    return WaitTimeoutError(f"rank {rank} has waited for {seconds:g} s, and nobody came to end its wait")


class ParkingPlace:
    """One wait of one thread of a (global) rank."""

    __slots__ = ("adopted", "baton", "deadline", "rank", "released", "stuck", "timed_out", "woken")

    def __init__(self, rank: int, *, woken: bool = False) -> None:
        self.rank = rank
        self.woken = woken
        self.released = False
        self.stuck = False
        self.adopted = False
        self.deadline: float | None = None
        self.timed_out = False
        self.baton = Lock()
        self.baton.acquire()


class RankScheduler(Protocol):
    """Schedules ranks that are threads. ``lock`` guards their state; callers of ``place`` and ``wake`` hold it."""

    on_stuck: Callable[[], None]

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The lock for everything that the ranks share."""
        ...

    def check_own(self, rank: int) -> None:
        """Raise RuntimeError if the calling thread is known to be another rank's."""
        ...

    def place(self, rank: int) -> ParkingPlace:
        """A place at which the calling thread, of that rank, is going to wait."""
        ...

    def wait(self, place: ParkingPlace, timeout: float | None = None) -> None:
        """Wait until the place is woken, without the lock; raises :class:`StuckError` if no thread can do that, or none
        has for ``timeout`` seconds.
        """
        ...

    def wake(self, place: ParkingPlace) -> None:
        """End the wait at a place."""
        ...

    def pause(self, rank: int) -> None:
        """Let another rank go on instead, if the schedule decides so; without the lock."""
        ...

    def others_may_run(self, rank: int) -> bool:
        """True if threads that need no turn may run meanwhile; under the lock."""
        ...

    def yield_turn(self, rank: int) -> bool:
        """Let others go on for a moment; returns True if there may be any. Without the lock."""
        ...
