"""A store for threads that the end of the interpreter may overtake.

A daemon thread that sits in C++ when the interpreter ends aborts the process, so nothing here waits in the store: it
asks again and again, ever more rarely, and can be told to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import Store

_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.5


class PolledStore:
    """The part of a c10d store that ranks need to meet; raises RuntimeError as that does, and after :meth:`stop`.

    ``connect`` makes the store, at its first use: a connection of its own costs time.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect
        self._made: Store | None = None
        self._stopped = threading.Event()

    @property
    def _store(self) -> Store:
        if self._stopped.is_set():
            raise RuntimeError("this store is not asked any more: whoever waited was told to stop")
        if self._made is None:
            self._made = self._connect()
        return self._made

    def set(self, key: str, value: str) -> None:
        """Publish a value."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """A published value; it must be there."""
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        """Forget a value; whether it was there."""
        return self._store.delete_key(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns what it is then."""
        return self._store.add(key, amount)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Return when all keys are there; raises RuntimeError after ``timeout``."""
        deadline = time.monotonic() + timeout.total_seconds()
        pause = _FIRST_PAUSE_SECONDS
        while not self.check(keys):
            left = deadline - time.monotonic()
            if left <= 0:
                raise RuntimeError(f"{', '.join(keys)}: not in the store within {timeout.total_seconds()} s")
            self._stopped.wait(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def rest(self, seconds: float) -> None:
        """Wait before asking again; no longer than until :meth:`stop`."""
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Have whoever waits, or asks from now on, told that it is over."""
        self._stopped.set()
