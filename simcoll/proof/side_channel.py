"""The side channel of ``detail`` mode, over which the ranks of a group prove their calls to each other.

The user's own group is never touched by a proof, so that a proof that fails leaves it usable. The channel is made
when the first call is proved; one that broke (a rank did not come) is replaced by a new *generation*.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from simcoll.core.ranges import ranks_text
from simcoll.proof.allreduce import TimeLimit, WordChannel, limit_of
from simcoll.proof.connections import LinkStore
from simcoll.proof.store import PolledStore

_GRACE = timedelta(seconds=2)
"""The time a rank whose proof failed waits for the others to say that theirs failed too."""

_POLL_SECONDS = 0.02


class ChannelBrokenError(Exception):
    """The words of some ranks did not arrive; ``absent`` are the group ranks that did not come at all."""

    def __init__(self, absent: tuple[int, ...], waited: timedelta) -> None:
        super().__init__(f"group {ranks_text(absent)} did not come within {waited.total_seconds()} s")
        self.absent = absent
        self.waited = waited


class SideChannel:
    """Sums one word over the ranks of a group, and exchanges documents through the store where the sum is not zero."""

    def __init__(self, store: PolledStore, group_rank: int, group_size: int, timeout: Callable[[], timedelta]) -> None:
        self._store = store
        self._rank = group_rank
        self._size = group_size
        self._timeout = timeout
        self._generation = 0
        self._words: WordChannel | None = None

    def total(self, word: int, timeout: TimeLimit) -> int:
        """The sum of the ranks' words modulo 2^64; all ranks come here in the same order.

        Raises :class:`ChannelBrokenError` if ranks do not come within ``timeout``.
        """
        since = time.monotonic()
        try:
            return (self._words or self._connect(limit_of(timeout))).combined(word, timeout)
        except (OSError, RuntimeError) as error:
            # The store is c10d's, whose errors are of the second type.
            raise self._broken(timedelta(seconds=time.monotonic() - since)) from error

    def _connect(self, timeout: timedelta) -> WordChannel:
        """Meet the ranks that this one talks to, unless the others have stopped waiting for it already."""
        if self._store.check([f"{self._generation}/broken/any"]):
            raise ConnectionError(f"group rank {self._rank} came when the others had stopped waiting for it")
        store = self._store.under(f"{self._generation}/words")
        self._words = WordChannel.connect(store, self._rank, self._size, timeout)
        return self._words

    def _broken(self, waited: timedelta) -> ChannelBrokenError:
        """Give up this generation; returns the error. Closing the channel wakes the ranks that still wait."""
        key = f"{self._generation}/broken"
        self.close()
        try:
            self._store.require_reachable()
            self._store.set(f"{key}/any", "")
            self._store.set(f"{key}/{self._rank}", str(waited.total_seconds()))
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
        waited = [float(self._store.get(f"{key}/{rank}")) for rank in range(self._size)]
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
