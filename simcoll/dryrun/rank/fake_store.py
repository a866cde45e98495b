"""The stores of a dry run's rank: keys in memory, and those that other ranks have set, as far as they are known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist

from simcoll.dryrun.rank.sent_values import SentValues
from simcoll.dryrun.rank.store_counters import StoreCounters, addition_name
from simcoll.dryrun.rank.taint import TaintTracker

_DEFAULT = timedelta(minutes=5)
_LEAST_LOOKS = 20
_alive: list[dist.Store] = []
"""C++ keeps a store, but not the Python object whose methods it calls."""


class FakeStore(dist.Store):
    """Takes the place of every store that a program makes; C++ calls these methods too.

    A key that no rank is known to have set is missing at once: nobody else runs who could set it. In the first pass a
    wait for it is taken to succeed: a rank that is started later may set it. A program that looks for it again and
    again, and does nothing else, is ended as one that waits.
    """

    sent: ClassVar[SentValues | None] = None
    """The keys that ranks send each other."""

    counters: ClassVar[StoreCounters | None] = None
    """The numbers that ranks add to; without it this rank alone does."""

    taint: ClassVar[TaintTracker | None] = None
    """The tracker that notes reads of unknown keys."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._looks: dict[str, tuple[object, int, float]] = {}
        self._limit = _DEFAULT
        self.host, self.port = "localhost", 29500
        _alive.append(self)

    def set(self, key: str, value: Any) -> None:
        """Set a key."""
        self._values[key] = _bytes(value)
        if self.sent is not None:
            self.sent.put(_name(key), self._values[key])

    def get(self, key: str) -> bytes:
        """The value of a key; raises DistStoreError where it is not known."""
        self._require([key])
        if key in self._values and not self._is_counted(key):
            return self._values[key]
        return str(self.add(key, 0)).encode()

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0 or what this rank has set, and return it."""
        begin = int(self._values.get(key, b"0"))
        if self.counters is None:
            self._values[key] = str(begin + amount).encode()
            return begin + amount
        total = begin + (self.counters.add(key, amount) if amount else self.counters.read(key))
        if self.counters.assumed and self.taint is not None:
            self.taint.note_missing_objects()
        if not amount:
            self._look(key, total)
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a key if it has the expected value (empty: no value); returns its value then."""
        if self._values.get(key, b"") == _bytes(expected):
            self.set(key, desired)
        return self._values.get(key, _bytes(expected))

    def append(self, key: str, value: Any) -> None:
        """Append to a key's value."""
        self.set(key, self._values.get(key, b"") + _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys are there."""
        missing = self._missing(keys)
        for key in missing:
            self._look(key, None)
        return not missing

    def wait(self, keys: Sequence[str], timeout: timedelta = _DEFAULT) -> None:
        """Take the values of keys that others have set; raises DistStoreError where none of them can be known to."""
        if self.sent is None or not self.sent.is_first_pass:
            self._require(keys)
        elif self._missing(keys) and self.taint is not None:
            self.taint.note_missing_objects(waited=True)

    def delete_key(self, key: str) -> bool:
        """Delete a key; returns whether it was there."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of keys."""
        return len(self._values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Set several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """True: append, multi_get and multi_set are there."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of waits."""
        self._limit = timeout

    # The names that C++ uses.
    compareSet, deleteKey, getNumKeys = compare_set, delete_key, num_keys  # noqa: N815
    multiGet, multiSet, hasExtendedApi, setTimeout = multi_get, multi_set, has_extended_api, set_timeout  # noqa: N815

    def clone(self) -> FakeStore:
        """The store itself: there is no connection to duplicate."""
        return self

    @property
    def timeout(self) -> timedelta:
        """The timeout of waits."""
        return self._limit

    def _require(self, keys: Sequence[str]) -> None:
        if missing := self._missing(keys):
            raise dist.DistStoreError(f"no rank is known to have set the keys {', '.join(missing)}")

    def _missing(self, keys: Sequence[str]) -> list[str]:
        """The keys that are not known, after a look at what others have set."""
        missing = [key for key in keys if not self._is_there(key)]
        if missing and self.taint is not None:
            self.taint.note_missing_objects()
        return missing

    def _is_there(self, key: str) -> bool:
        if key in self._values or self._is_counted(key):
            return True
        found = None if self.sent is None else self.sent.find(_name(key), addition_name(key))
        if found is not None and found[0] == _name(key):
            self._values[key] = found[1]
        return found is not None

    def _is_counted(self, key: str) -> bool:
        return self.counters is not None and key in self.counters

    def _look(self, key: str, value: int | None) -> None:
        """Note a look at a key; raises DistStoreError where the program does nothing but wait for another value."""
        if self.sent is None:
            return
        state, now = (value, self.sent.made()), time.monotonic()
        before, looks, since = self._looks.get(key, (None, 0, now))
        looks, since = (looks + 1, since) if before == state else (1, now)
        self._looks[key] = state, looks, since
        if looks >= _LEAST_LOOKS and now - since > self.sent.patience:
            if self.taint is not None:
                self.taint.note_missing_objects()
            raise dist.DistStoreError(f"no rank is known to do what this one waits for at the key {key}")


def _name(key: str) -> str:
    return f"store {key}"


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
