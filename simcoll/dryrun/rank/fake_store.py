"""The stores of a dry run's rank: keys in memory, and those that other ranks have set, as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist

from simcoll.dryrun.rank.sent_values import SentValues
from simcoll.dryrun.rank.taint import TaintTracker

_DEFAULT = timedelta(minutes=5)
_alive: list[dist.Store] = []
"""C++ keeps a store, but not the Python object whose methods it calls."""


class FakeStore(dist.Store):
    """Takes the place of every store that a program makes; C++ calls these methods too.

    A key that no rank is known to have set is missing at once: nobody else runs who could set it.
    """

    sent: ClassVar[SentValues | None] = None
    """Where ranks find each other's keys."""

    taint: ClassVar[TaintTracker | None] = None
    """Where it is noted that a key is not known."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
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
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a number of this rank's, which begins at 0, and return it."""
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
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
        """Whether all keys are there."""
        return not self._missing(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta = _DEFAULT) -> None:
        """Take the values of keys that others have set; raises DistStoreError where one is not known."""
        if missing := self._missing(keys):
            raise dist.DistStoreError(f"no rank is known to have set the keys {', '.join(missing)}")

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
        """Whether append, multi_get and multi_set are there."""
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

    def _missing(self, keys: Sequence[str]) -> list[str]:
        """The keys that are not known, after a look at what others have set."""
        for key in keys:
            if key not in self._values and self.sent is not None and (found := self.sent.find(_name(key))) is not None:
                self._values[key] = found
        missing = [key for key in keys if key not in self._values]
        if missing and self.taint is not None:
            self.taint.note_missing_objects()
        return missing


def _name(key: str) -> str:
    return f"store {key}"


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
