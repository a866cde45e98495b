"""A c10d store for ranks that take turns: a rank that waits for a key gives up its turn, so that another can set it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from simcoll.backends.engine.parking import ParkingPlace, StuckError
from simcoll.backends.engine.python_store import PythonStore
from simcoll.backends.engine.turns import Turns
from simcoll.backends.threaded.session import RankWaits, ThreadClocks
from simcoll.core.rank_local import acting_rank

_NO_TIMEOUT = timedelta(0)


class RankStore(PythonStore):
    """Keys and values in memory, shared by all ranks.

    A rank's clock is never before the time at which a value that it reads was set.
    """

    def __init__(self, turns: Turns, waits: Callable[[], RankWaits], clock: ThreadClocks) -> None:
        super().__init__(timedelta(minutes=30))
        self._turns = turns
        self._waits = waits
        self._clock = clock
        self._values: dict[str, bytes] = {}
        self._set_at: dict[str, float] = {}
        self._parked: list[ParkingPlace] = []

    def set(self, key: str, value: Any) -> None:
        """Set a key."""
        with self._turns.lock:
            self._put(key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        [value] = self._await([key], self._limit)
        return value

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0, and return it."""
        with self._turns.lock:
            self._see([key])
            total = int(self._values.get(key, b"0")) + amount
            self._put(key, str(total).encode())
            return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a key if it has the expected value (empty: no value); returns its value then."""
        with self._turns.lock:
            self._see([key])
            if self._values.get(key, b"") == _bytes(expected):
                self._put(key, _bytes(desired))
            return self._values.get(key, _bytes(expected))

    def append(self, key: str, value: Any) -> None:
        """Append to a key's value."""
        with self._turns.lock:
            self._put(key, self._values.get(key, b"") + _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys are there."""
        with self._turns.lock:
            self._see(keys)
            return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta = _NO_TIMEOUT) -> None:
        """Wait until all keys are there."""
        self._await(keys, timeout if timeout > _NO_TIMEOUT else self._limit)

    def delete_key(self, key: str) -> bool:
        """Delete a key; returns whether it was there."""
        with self._turns.lock:
            self._set_at.pop(key, None)
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of keys."""
        with self._turns.lock:
            return len(self._values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for keys and return their values."""
        return self._await(keys, self._limit)

    def _await(self, keys: Sequence[str], limit: timedelta) -> list[bytes]:
        """Wait for keys and return their values."""
        while True:
            with self._turns.lock:
                if all(key in self._values for key in keys):
                    self._see(keys)
                    return [self._values[key] for key in keys]
                if (rank := acting_rank()) is None:
                    raise RuntimeError(f"keys {', '.join(keys)}: a thread that belongs to no rank cannot wait for them")
                place = self._turns.place(rank.rank)
                self._parked.append(place)
            try:
                self._waits().pause(self._turns, place, limit.total_seconds())
            except StuckError as error:
                missing = [key for key in keys if key not in self._values]
                raise type(error)(
                    f"wait timeout after {limit.total_seconds():g} s, keys: {', '.join(missing)}"
                ) from error

    def _put(self, key: str, value: bytes) -> None:
        rank = acting_rank()
        self._values[key] = value
        if rank is not None:
            self._set_at[key] = max(self._set_at.get(key, 0.0), self._clock.now(rank.rank))
        parked, self._parked = self._parked, []
        for place in parked:
            self._turns.wake(place)

    def _see(self, keys: Sequence[str]) -> None:
        rank = acting_rank()
        if rank is not None:
            self._clock.reach(rank.rank, max((self._set_at.get(key, 0.0) for key in keys), default=0.0))


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
