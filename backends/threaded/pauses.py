"""A program's own pauses, for ranks that take turns: a rank that sleeps or waits for an event gives up its turn.

A sleep takes its full time on the clock of its rank, but at most a second of real time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable

from simcoll.backends.engine.parking import ParkingPlace, WaitTimeoutError
from simcoll.backends.engine.turns import Turns
from simcoll.backends.threaded.session import RankWaits
from simcoll.core.patches import Patches
from simcoll.core.rank_local import acting_rank

_LONGEST_SLEEP = 1.0
"""Seconds of real time; loops that sleep until some real time sleep less at a time."""


def replace_pauses(patches: Patches, turns: Turns, waits: Callable[[], RankWaits]) -> None:
    """Let sleeps and waits for conditions give up the turn, within ``waits()`` of the rank."""
    patches.wrap(time, "sleep", functools.partial(_sleeping, turns=turns, waits=waits))
    patches.wrap(threading.Condition, "wait", functools.partial(_waiting, turns=turns, waits=waits))


def _sleeping(sleep: Callable[[float], None], turns: Turns, waits: Callable[[], RankWaits]) -> Callable[[float], None]:
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
        except WaitTimeoutError:
            with waits():
                sleep(max(0.0, began + min(seconds, _LONGEST_SLEEP) - time.monotonic()))

    return sleep_for_rank


class _Waiter:
    """Imitates the lock at which a thread waits for a condition."""

    def __init__(self, turns: Turns, place: ParkingPlace) -> None:
        self._turns, self._place = turns, place

    def release(self) -> None:
        """Wake the thread: the condition has been notified."""
        with self._turns.lock:
            self._turns.wake(self._place)


def _waiting(
    wait: Callable[[threading.Condition, float | None], bool], turns: Turns, waits: Callable[[], RankWaits]
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
        except WaitTimeoutError:
            with contextlib.suppress(ValueError):
                condition._waiters.remove(waiter)  # type: ignore[attr-defined]
            return False
        finally:
            condition._acquire_restore(saved)  # type: ignore[attr-defined]

    return wait_for_rank
