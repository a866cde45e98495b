"""The side channel of ``detail`` mode, over which the ranks of a group prove their calls to each other.

The user's own group is never touched by a proof, so that a proof that fails leaves it usable. The channel is made
when the first call is proved; one that broke (a rank did not come) is replaced by a new *generation*.

A store for threads that the end of the interpreter may overtake.

A daemon thread that sits in C++ when the interpreter ends aborts the process, so no thread waits in the store: it asks
repeatedly, ever more rarely, and can be told to stop.
"""

from __future__ import annotations

import functools
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from torch.distributed import PrefixStore, Store, TCPStore

from simcoll.core.ranges import ranks_text
from simcoll.proof.allreduce import WordChannel
from simcoll.proof.connections import LinkStore

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
        """True if all keys are there."""
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        """Forget a value; returns True if it was there."""
        return self._store.delete_key(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns its new value."""
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
        """Make every wait and every later request raise: the store is not asked any more."""
        self._stopped.set()


_GRACE = timedelta(seconds=2)
"""The time a rank whose proof failed waits for the others to say that theirs failed too."""

_POLL_SECONDS = 0.02
_REACH_SECONDS = 5.0


class ChannelBrokenError(Exception):
    """The words of some ranks did not arrive; ``absent`` are the group ranks that did not come at all."""

    def __init__(self, absent: tuple[int, ...], waited: timedelta) -> None:
        super().__init__(f"group {ranks_text(absent)} did not come within {waited.total_seconds()} s")
        self.absent = absent
        self.waited = waited


class SideChannel:
    """Sums one word over the ranks of a group, and exchanges documents through the store where the sum is not zero."""

    def __init__(self, store: Store, group_rank: int, group_size: int, timeout: Callable[[], timedelta]) -> None:
        self._base = store
        self._rank = group_rank
        self._size = group_size
        self._timeout = timeout
        self._generation = 0
        self._words: WordChannel | None = None

    @functools.cached_property
    def _store(self) -> PrefixStore:
        """The store of the ranks' meeting, over a connection of its own: a blocked wait holds up a shared one's users.

        Made with the first proof, because a group that is never used must cost no connection.
        """
        return PrefixStore("simcoll", own_connection(self._base))

    def total(self, word: int, timeout: timedelta, note: Mapping[str, object]) -> int:
        """The sum of the ranks' words modulo 2^64; all ranks come here in the same order.

        Raises :class:`ChannelBrokenError` if ranks do not come within ``timeout``, and leaves ``note`` for them.
        """
        since = time.monotonic()
        try:
            return (self._words or self._connect(timeout)).sum(word, timeout)
        except OSError as error:
            raise self._broken(timedelta(seconds=time.monotonic() - since), note) from error
        except RuntimeError as error:
            # The store is c10d's, whose errors are of this type.
            raise self._broken(timedelta(seconds=time.monotonic() - since), note) from error

    def _connect(self, timeout: timedelta) -> WordChannel:
        """Meet the ranks that this one talks to, unless the others have stopped waiting for it already."""
        if self._store.check([f"{self._generation}/broken/any"]):
            raise ConnectionError(f"group rank {self._rank} came when the others had stopped waiting for it")
        store = PrefixStore(f"{self._generation}/words", self._store)
        self._words = WordChannel.connect(store, self._rank, self._size, timeout)
        return self._words

    def _broken(self, waited: timedelta, note: Mapping[str, object]) -> ChannelBrokenError:
        """Give up this generation; returns the error. Closing the channel wakes the ranks that still wait."""
        key = f"{self._generation}/broken"
        self.close()
        try:
            require_reachable(self._base)
            self._store.set(f"{key}/any", "")
            self._store.set(f"{key}/{self._rank}", json.dumps({**note, "waited": waited.total_seconds()}))
            absent = self._absent(key) or self._latest(key)
        except (RuntimeError, OSError):
            # The store is gone with the process that held it, or its host is out of reach: which ranks are still there
            # is not known.
            absent = ()
        return ChannelBrokenError(absent, waited)

    def _absent(self, key: str) -> tuple[int, ...]:
        """The ranks that have not said within the grace period that their proof failed too."""
        deadline = time.monotonic() + _GRACE.total_seconds()
        absent = tuple(range(self._size))
        while absent and time.monotonic() < deadline:
            absent = tuple(rank for rank in absent if not self._store.check([f"{key}/{rank}"]))
            if absent:
                time.sleep(_POLL_SECONDS)
        return absent

    def _latest(self, key: str) -> tuple[int, ...]:
        """All ranks came, too late: those that had waited least when the channel broke kept the others waiting."""
        waited = [float(json.loads(self._store.get(f"{key}/{rank}"))["waited"]) for rank in range(self._size)]
        return tuple(rank for rank in range(self._size) if waited[rank] < max(waited) / 2)

    def exchange(self, place: str, document: Mapping[str, object]) -> dict[int, object]:
        """Everybody's document by group rank, once at each place; see :func:`exchange`."""
        timeout = min(self._timeout(), timedelta(seconds=60))
        return exchange(self._store, f"{self._generation}/differ/{place}", self._rank, self._size, document, timeout)

    def close(self) -> None:
        """Let the connections go; a later call makes new ones."""
        if self._words is not None:
            self._words.close()
            self._words = None
        self._generation += 1


class DocumentStore(LinkStore, Protocol):
    """The methods of a c10d ``Store`` that an exchange of documents needs."""

    def check(self, keys: list[str], /) -> bool:
        """True if all keys are there."""


def exchange(
    store: DocumentStore, prefix: str, rank: int, size: int, document: Mapping[str, object], timeout: timedelta
) -> dict[int, object]:
    """Everybody's document by group rank, under keys of ``prefix`` that were not used before.

    The first rank collects them, so that the cost is linear in ranks; a rank that died meanwhile is left out.
    """
    store.set(f"{prefix}/{rank}", json.dumps(document))
    if rank == 0:
        collected = _collect(store, [f"{prefix}/{other}" for other in range(size)], timeout)
        store.set(f"{prefix}/all", json.dumps(collected))
    store.wait([f"{prefix}/all"], timeout * 2)
    return {int(other): value for other, value in json.loads(store.get(f"{prefix}/all")).items()}


def _collect(store: DocumentStore, keys: Sequence[str], timeout: timedelta) -> dict[int, object]:
    try:
        store.wait(list(keys), timeout)
    except RuntimeError:
        keys = [key for key in keys if store.check([key])]
    return {int(key.rpartition("/")[2]): json.loads(store.get(key)) for key in keys}


def require_reachable(store: Store) -> None:
    """Raise OSError where the host of a store is out of reach: torch waits for its answer for as long as TCP tries to
    send, a quarter of an hour.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        socket.create_connection((store.host, store.port), _REACH_SECONDS).close()


def own_connection(store: Store) -> Store:
    """A store with a connection of its own; one written in Python may know no such thing."""
    try:
        return store.clone()  # type: ignore[attr-defined,no-any-return]  # not in torch's stubs
    except (AttributeError, NotImplementedError, RuntimeError):
        return store
