"""Ranks as threads that take turns: one runs at a time, in an order that is the same every time.

A rank keeps its turn until it parks. Whoever makes its condition true wakes it, in the manner of trio's parking lot, so
that nothing polls and nothing sleeps. When every rank that is left is parked, nobody can wake anybody: they are stuck,
and each is told so by an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

Choose: TypeAlias = Callable[[Sequence[int]], int]
"""Which of the ranks that could run goes next: the index of one of them. It decides the interleaving alone."""


class StuckError(RuntimeError):
    """A rank waits for something that no rank is left to do."""


def longest_waiting(ranks: Sequence[int]) -> int:
    """The rank that became ready first."""
    return 0


class Turns:
    """Runs ``count`` ranks, one at a time; ``choose`` picks who is next."""

    def __init__(self, count: int, choose: Choose = longest_waiting) -> None:
        self._choose = choose
        self._ready = list(range(count))
        self._parked: list[int] = []
        self._stuck: set[int] = set()
        self._batons = [threading.Semaphore(0) for _ in range(count)]
        self._ended = threading.Semaphore(0)

    def run(self, body: Callable[[int], None]) -> None:
        """Run ``body(rank)`` on every rank to its end. ``body`` must not raise."""
        threads = [
            threading.Thread(target=self._rank, args=(body, rank), name=f"rank {rank}", daemon=True)
            for rank in range(len(self._batons))
        ]
        for thread in threads:
            thread.start()
        self._pass_on()
        self._ended.acquire()
        for thread in threads:
            thread.join()

    def park(self, rank: int) -> None:
        """Give up the turn until :meth:`wake`; called on the rank's own thread. Raises :class:`StuckError`."""
        self._parked.append(rank)
        self._pass_on()
        self._batons[rank].acquire()
        if rank in self._stuck:
            self._stuck.discard(rank)
            raise StuckError(f"rank {rank} waits, and no rank is left that could end its wait")

    def wake(self, rank: int) -> None:
        """Let a parked rank run when its turn comes; called by the rank whose turn it is."""
        self._parked.remove(rank)
        self._ready.append(rank)

    def _rank(self, body: Callable[[int], None], rank: int) -> None:
        self._batons[rank].acquire()
        try:
            body(rank)
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        if not self._ready:
            self._stuck.update(self._parked)
            self._ready, self._parked = self._parked, []
        if not self._ready:
            self._ended.release()
            return
        self._batons[self._ready.pop(self._choose(self._ready))].release()
