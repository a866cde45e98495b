"""Where a thread of a rank waits until somebody wakes it, and how ranks that share a process run beside each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Protocol


class StuckError(RuntimeError):
    """A rank waits for something that no rank is left to do; ``absent`` are the ranks (global) that did not come."""

    absent: tuple[int, ...] = ()


class LateError(StuckError):
    """A rank has waited for as long as it was willing to."""


class Place:
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


class Threads(Protocol):
    """Ranks as threads. ``lock`` guards what they share: :meth:`place` and :meth:`wake` are called under it."""

    on_stuck: Callable[[], None]

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by whoever looks at, or changes, what the ranks share."""
        ...

    def check_own(self, rank: int) -> None:
        """Raise RuntimeError where the calling thread is known to be another rank's."""
        ...

    def place(self, rank: int) -> Place:
        """Where the calling thread, of that rank, is going to wait."""
        ...

    def wait(self, place: Place, timeout: float | None = None) -> None:
        """Wait until somebody wakes the place, without the lock; raises :class:`StuckError` where nobody will, or
        nobody has for ``timeout`` seconds.
        """
        ...

    def wake(self, place: Place) -> None:
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
