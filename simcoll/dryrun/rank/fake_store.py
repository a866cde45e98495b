"""The stores of a dry run's rank: keys in memory, and those that other ranks have set, as far as they are known."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist

from simcoll.backends.engine.python_store import PythonStore
from simcoll.core.patches import Patches
from simcoll.dryrun.rank.sent_values import CollectiveCounts, SentValues
from simcoll.dryrun.rank.store_log import StoreLog
from simcoll.dryrun.rank.taint import TaintTracker

_DEFAULT = timedelta(minutes=5)
_LEAST_LOOKS = 20
_PORT = 29500
_alive: list[dist.Store] = []
"""C++ keeps a store, but not the Python object whose methods it calls."""


class StoreLogs:
    """What ranks do to the keys of all stores."""

    def __init__(self, sent: SentValues) -> None:
        kinds = "store", "additions", "appended", "queued", "popped"
        self.values, self.numbers, self.appended, self.queued, self.popped = (StoreLog(sent, kind) for kind in kinds)
        self.of_keys = self.values, self.numbers, self.appended


class FakeStore(PythonStore):
    """Takes the place of every store that a program makes.

    A key that no rank is known to have set is missing at once: nobody else runs who could set it. In the first pass a
    wait for it is taken to succeed: a rank that is started later may set it. A program that looks for it again and
    again, and does nothing else, is ended as one that waits. ``place`` tells stores apart.
    """

    sent: ClassVar[SentValues]
    """What ranks send each other."""

    logs: ClassVar[StoreLogs]
    """What they do to keys."""

    taint: ClassVar[TaintTracker | None] = None
    """The tracker that notes reads of unknown keys."""

    def __init__(self, place: str) -> None:
        super().__init__(_DEFAULT)
        self._place = place
        self._seen: set[str] = set()
        self._read: set[str] = set()
        self._looks: dict[str, tuple[object, int, float]] = {}
        self._names: list[str] | None = None
        _alive.append(self)

    def set(self, key: str, value: Any) -> None:
        """Set a key."""
        self.logs.values.set(self._seen_key(key), _text(value))

    def get(self, key: str) -> bytes:
        """The value of a key; raises DistStoreError where it is not known."""
        self._require([key])
        name = self._seen_key(key)
        base, since = self._value(name)
        if self.logs.numbers.is_known(name, since):
            return str(self.add(key, 0)).encode()
        if self.logs.appended.is_known(name, since):
            parts = self.logs.appended.read(name, since)
            self._note_if(self.logs.appended.assumed)
            base = (base or "") + "".join(map(str, parts))
        return (base or "").encode("latin-1")

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0 or what a rank has set, and return it."""
        name, numbers = self._seen_key(key), self.logs.numbers
        base, since = self._value(name)
        added = numbers.add(name, amount, since) if amount else numbers.read(name, since)
        self._note_if(numbers.assumed)
        total = int(base or 0) + sum(int(one or 0) for one in added)
        if not amount:
            self._look(key, total)
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a key if it has the expected value (empty: no value); returns its value then."""
        by_rank = key not in self._read
        self._is_there(key)
        run = self.logs.values.latest(self._seen_key(key), by_rank=by_rank)
        current = None if run is None or run.value is None else str(run.value)
        if (current or "") == _text(expected):
            self.set(key, desired)
            return _text(desired).encode("latin-1")
        return _text(expected if current is None else current).encode("latin-1")

    def append(self, key: str, value: Any) -> None:
        """Append to a key's value."""
        if self._names is None:
            self.logs.appended.put(self._seen_key(key), _text(value))
        else:
            self._names.append(key)

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys are there."""
        missing = self._missing(keys)
        for key in missing:
            self._look(key, None)
        return not missing

    def wait(self, keys: Sequence[str], timeout: timedelta = _DEFAULT) -> None:
        """Take the values of keys that others have set; raises DistStoreError where none of them can be known to."""
        if not self.sent.is_first_pass:
            self._require(keys)
        elif self._missing(keys) and self.taint is not None:
            self.taint.note_missing_objects(waited=True)

    def delete_key(self, key: str) -> bool:
        """Delete a key; returns whether it was there."""
        was_there = self._is_there(key)
        if was_there:
            self.logs.values.set(self._seen_key(key), None)
        return was_there

    def num_keys(self) -> int:
        """The number of keys that this rank knows."""
        self._note_if(True)
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """The keys that this rank knows."""
        return [key for key in sorted(self._seen) if self._is_there(key)]

    def queue_push(self, key: str, value: Any) -> None:
        """Put a value into a queue."""
        self.logs.queued.put(self._seen_key(key), _text(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the next value, in the order of the ranks; raises an exception of torch where none is known."""
        name, queued, popped = self._seen_key(key), self.logs.queued, self.logs.popped
        self.sent.find(queued.name(name))
        number = len(popped.add(name, 1))
        values = queued.known(name)
        self._note_if(queued.assumed or popped.assumed)
        if number <= len(values):
            return _text(values[number - 1]).encode("latin-1")
        popped.take_back(name)
        self._look(key, number)
        if block:
            raise dist.DistStoreError(f"no rank is known to have put a value for this one into the queue {key}")
        raise dist.QueueEmptyError("queue is empty")

    def queue_len(self, key: str) -> int:
        """The number of values in a queue."""
        name, queued, popped = self._seen_key(key), self.logs.queued, self.logs.popped
        self.sent.find(queued.name(name))
        left = len(queued.known(name)) - len(popped.known(name))
        self._note_if(queued.assumed or popped.assumed)
        self._look(key, left)
        return max(left, 0)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys."""
        return [self.get(key) for key in keys]

    def prefixed(self, store: Any, key: str) -> str:
        """The name that a store of prefixed keys on top of this one gives to a key."""
        self._names = []
        try:
            store.append(key, "")
            return self._names[0]
        finally:
            self._names = None

    def _seen_key(self, key: str) -> str:
        self._seen.add(key)
        return f"{self._place} {key}"

    def _value(self, name: str) -> tuple[str | None, CollectiveCounts | None]:
        """What a key was set to last, and the collectives before that."""
        run = self.logs.values.latest(name)
        return (None, None) if run is None else (None if run.value is None else str(run.value), run.after)

    def _require(self, keys: Sequence[str]) -> None:
        if missing := self._missing(keys):
            raise dist.DistStoreError(f"no rank is known to have set the keys {', '.join(missing)}")

    def _missing(self, keys: Sequence[str]) -> list[str]:
        """The keys that are not known, after a look at what others have set."""
        missing = [key for key in keys if not self._is_there(key)]
        self._read.update(set(keys).difference(missing))
        self._note_if(bool(missing))
        return missing

    def _note_if(self, uncertain: bool) -> None:
        if uncertain and self.taint is not None:
            self.taint.note_missing_objects()

    def _is_there(self, key: str) -> bool:
        name = f"{self._place} {key}"
        if not any(name in log for log in self.logs.of_keys):
            self.sent.find(*(log.name(name) for log in self.logs.of_keys))  # waits for ranks that are ahead
        run = self.logs.values.latest(name)
        since = None if run is None else run.after
        if any(log.stopped for log in self.logs.of_keys) and self.taint is not None:
            self.taint.note_missing_objects(stopped=True)
        is_there = (run is not None and run.value is not None) or any(
            log.is_known(name, since) for log in (self.logs.numbers, self.logs.appended)
        )
        if is_there:
            self._seen.add(key)
        return is_there

    def _look(self, key: str, value: int | None) -> None:
        """Note a look at a key; raises DistStoreError where the program does nothing but wait for another value."""
        state, now = (value, self.sent.made()), time.monotonic()
        before, looks, since = self._looks.get(key, (None, 0, now))
        looks, since = (looks + 1, since) if before == state else (1, now)
        self._looks[key] = state, looks, since
        if looks >= _LEAST_LOOKS and now - since > self.sent.patience:
            self._note_if(True)
            raise dist.DistStoreError(f"no rank is known to do what this one waits for at the key {key}")


class FakeTCPStore(FakeStore):
    """The store at a port."""

    def __init__(self, host_name: str = "localhost", port: int | None = None, *_: Any, **__: Any) -> None:
        self.host, self.port = host_name, port or _PORT
        super().__init__(f"port {self.port}")


class FakeFileStore(FakeStore):
    """The store in a file."""

    def __init__(self, file_name: str, *_: Any, **__: Any) -> None:
        self.path = file_name
        super().__init__(f"file {file_name}")


def let_prefixed_stores_queue(patches: Patches) -> None:
    """Let the methods of torch's store of prefixed keys that do not call Python call that of a fake one."""
    for name in ("queue_push", "queue_pop", "queue_len", "list_keys"):
        if hasattr(dist.PrefixStore, name):
            patches.wrap(dist.PrefixStore, name, _on_fake_store)


def _on_fake_store(method: Callable[..., Any]) -> Callable[..., Any]:
    name = method.__name__

    @functools.wraps(method)
    def call(store: Any, *args: Any, **kwargs: Any) -> Any:
        inner = store._underlying_non_prefix_store
        if not isinstance(inner, FakeStore):
            return method(store, *args, **kwargs)
        prefix = inner.prefixed(store, "")
        if name == "list_keys":
            return [key.removeprefix(prefix) for key in inner.list_keys() if key.startswith(prefix)]
        key, *rest = args if args else (kwargs.pop("key"),)
        return getattr(inner, name)(prefix + key, *rest, **kwargs)

    return call


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("latin-1")
