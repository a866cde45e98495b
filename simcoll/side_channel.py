"""The side channel of ``detail`` mode: a second Gloo group for the same ranks, over which calls are proved.

The user's own group is never touched by a proof, so that a proof that fails leaves it usable. The channel is made
when the first call is proved; one that broke (a rank did not come) is replaced by a new *generation*.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import _enable_record_function
from torch.distributed import AllreduceOptions, PrefixStore, ProcessGroupGloo, Store, Work

_GRACE = timedelta(seconds=2)
"""How long a rank whose proof failed waits for the others to say that theirs failed too."""

_SHORTEST = timedelta(milliseconds=1)

_POLL_SECONDS = 0.02


class ChannelBrokenError(Exception):
    """The words of some ranks did not arrive; ``absent`` are the group ranks that did not come at all."""

    def __init__(self, absent: tuple[int, ...], waited: timedelta) -> None:
        super().__init__(f"group ranks {list(absent)} did not come within {waited.total_seconds()} s")
        self.absent = absent
        self.waited = waited


@dataclass(slots=True)
class Posted:
    """A word on its way: the all-reduce that sums it, and when it was given up to the channel."""

    total: npt.NDArray[np.uint64]
    tensor: torch.Tensor
    work: Work | None
    generation: int
    since: float
    error: Exception | None = None


class SideChannel:
    """Sums one word over the ranks of a group, and exchanges documents through the store where the sum is not zero."""

    def __init__(self, store: Store, group_rank: int, group_size: int, timeout: Callable[[], timedelta]) -> None:
        # A blocked wait on a shared connection holds up every user of the store.
        self._store = PrefixStore("simcoll", _own_connection(store))
        self._rank = group_rank
        self._size = group_size
        self._timeout = timeout
        self._generation = 0
        self._group: ProcessGroupGloo | None = None
        self._absentees: dict[int, tuple[int, ...]] = {}

    def post(self, word: int, timeout: timedelta | None, *, connect: bool = True) -> Posted | None:
        """Start to sum ``word`` over the group; a channel that cannot be made is told by :meth:`total`.

        None where there is no channel yet and ``connect`` forbids to wait for the other ranks.
        """
        if self._group is None and not connect:
            return None
        buffer = np.array([word], np.uint64)
        tensor = torch.from_numpy(buffer.view(np.int64))
        posted = Posted(buffer, tensor, None, self._generation, time.monotonic())
        # A timeout of zero means "none at all" to a store.
        limit = max(self._timeout() if timeout is None else timeout, _SHORTEST)
        try:
            group = self._group or self._connect(limit)
            options = AllreduceOptions()
            options.timeout = limit
            # The proof must not show in the user's profile.
            _enable_record_function(False)
            try:
                posted.work = group.allreduce([tensor], options)  # type: ignore[attr-defined]  # not in torch's stubs
            finally:
                _enable_record_function(True)
        except Exception as error:
            posted.error = error
        return posted

    def total(self, posted: Posted, note: Mapping[str, object]) -> int:
        """The sum modulo 2^64. Raises :class:`ChannelBrokenError` if ranks did not come, telling them ``note``."""
        if posted.work is not None:
            try:
                posted.work.wait()
                return int(posted.total[0])
            except RuntimeError as error:
                posted.error = error
        raise self._broken(posted, note) from posted.error

    def _connect(self, timeout: timedelta) -> ProcessGroupGloo:
        """Meet the other ranks, then connect; the meeting is what tells who did not come."""
        generation = str(self._generation)
        self._store.set(f"{generation}/here/{self._rank}", "")
        self._require_unbroken(generation)
        self._store.wait([f"{generation}/here/{rank}" for rank in range(self._size)], timeout)
        self._require_unbroken(generation)
        store = PrefixStore(f"{generation}/gloo", self._store)
        self._group = ProcessGroupGloo(store, self._rank, self._size, timeout)
        return self._group

    def _require_unbroken(self, generation: str) -> None:
        """A rank that comes when the others have given up must not wait for them."""
        if self._store.check([f"{generation}/broken/any"]):
            raise ConnectionError(f"group rank {self._rank} came when the others had stopped waiting for it")

    def _broken(self, posted: Posted, note: Mapping[str, object]) -> ChannelBrokenError:
        """Give up this generation; find out who came. Closing the channel wakes the ranks that still wait."""
        waited = timedelta(seconds=time.monotonic() - posted.since)
        key = f"{posted.generation}/broken"
        if posted.generation == self._generation:
            self._group = None
            self._generation += 1
        # All words that were on their way over one channel are lost for the same reason.
        if posted.generation not in self._absentees:
            document = {**note, "waited": waited.total_seconds()}
            self._store.set(f"{key}/any", "")
            self._store.set(f"{key}/{self._rank}", json.dumps(document))
            self._absentees[posted.generation] = self._absent(key) or self._latest(key)
        return ChannelBrokenError(self._absentees[posted.generation], waited)

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

    def exchange(self, sequence: int, document: Mapping[str, object]) -> dict[int, object]:
        """Everybody's document by group rank; the first rank collects them, so that the cost is linear in ranks."""
        prefix = f"{self._generation}/differ/{sequence}"
        timeout = min(self._timeout(), timedelta(seconds=60))
        self._store.set(f"{prefix}/{self._rank}", json.dumps(document))
        if self._rank == 0:
            collected = self._collect([f"{prefix}/{rank}" for rank in range(self._size)], timeout)
            self._store.set(f"{prefix}/all", json.dumps(collected))
        self._store.wait([f"{prefix}/all"], timeout * 2)
        return {int(rank): value for rank, value in json.loads(self._store.get(f"{prefix}/all")).items()}

    def _collect(self, keys: Sequence[str], timeout: timedelta) -> dict[int, object]:
        """What has arrived within ``timeout``; a rank that died meanwhile is left out."""
        try:
            self._store.wait(list(keys), timeout)
        except RuntimeError:
            keys = [key for key in keys if self._store.check([key])]
        return {int(key.rpartition("/")[2]): json.loads(self._store.get(key)) for key in keys}

    def close(self) -> None:
        """Let the connections go; a later call makes new ones."""
        if self._group is not None:
            self._group = None
            self._generation += 1


def _own_connection(store: Store) -> Store:
    """A store with a connection of its own; one written in Python may know no such thing."""
    try:
        return store.clone()  # type: ignore[attr-defined,no-any-return]  # not in torch's stubs
    except (AttributeError, NotImplementedError, RuntimeError):
        return store
