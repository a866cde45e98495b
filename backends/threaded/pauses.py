"""A program's own pauses, for ranks that take turns: who sleeps, or waits for an event, gives its turn away.

Sleep is cut short: it takes as long as it says on the clock of its rank, and a second at most on the wall.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simcoll.backends.engine.parking import LateError, ParkingPlace
from simcoll.backends.engine.turns import Turns
from simcoll.backends.threaded.session import PendingWaits
from simcoll.core.rank_local import acting_rank

_LONGEST_SLEEP = 1.0
"""Seconds; loops that sleep until a moment on the wall clock sleep less at a time."""


@contextmanager
def pauses_of_ranks(turns: Turns, waits: Callable[[], PendingWaits]) -> Iterator[None]:
    """Have pauses give the turn away, as long as the block lasts; ``waits`` gives what surrounds a rank's."""
    sleep, wait = time.sleep, threading.Condition.wait
    time.sleep = _sleeping(sleep, turns, waits)  # type: ignore[assignment]
    threading.Condition.wait = _waiting(wait, turns, waits)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        time.sleep = sleep
        threading.Condition.wait = wait  # type: ignore[method-assign]


def _sleeping(
    sleep: Callable[[float], None], turns: Turns, waits: Callable[[], PendingWaits]
) -> Callable[[float], None]:
    def sleep_for_rank(seconds: float) -> None:
        rank = acting_rank()
        if rank is None or threading.get_ident() != rank.main_thread or seconds <= 0:
            sleep(seconds)
            return
        began = time.monotonic()
        with turns.lock:
            place = turns.place(rank.rank)
        try:
            waits().pause(turns, place, seconds)
        except LateError:
            with waits():
                sleep(max(0.0, began + min(seconds, _LONGEST_SLEEP) - time.monotonic()))

    return sleep_for_rank


class _Waiter:
    """What a condition takes for the lock at which a thread waits."""

    def __init__(self, turns: Turns, place: ParkingPlace) -> None:
        self._turns, self._place = turns, place

    def release(self) -> None:
        """Somebody notifies the condition."""
        with self._turns.lock:
            self._turns.wake(self._place)


def _waiting(
    wait: Callable[[threading.Condition, float | None], bool], turns: Turns, waits: Callable[[], PendingWaits]
) -> Callable[[threading.Condition, float | None], bool]:
    def wait_for_rank(condition: threading.Condition, timeout: float | None = None) -> bool:
        rank = acting_rank()
        if rank is None or (timeout is not None and timeout <= 0):
            return wait(condition, timeout)
        if not condition._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("cannot wait on un-acquired lock")
        with turns.lock:
            place = turns.place(rank.rank)
        waiter = _Waiter(turns, place)
        condition._waiters.append(waiter)  # type: ignore[attr-defined]
        saved = condition._release_save()  # type: ignore[attr-defined]
        try:
            waits().pause(turns, place, timeout)
            return True
        except LateError:
            with contextlib.suppress(ValueError):
                condition._waiters.remove(waiter)  # type: ignore[attr-defined]
            return False
        finally:
            condition._acquire_restore(saved)  # type: ignore[attr-defined]

    return wait_for_rank
