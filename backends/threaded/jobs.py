"""Jobs whose ranks are threads that are started elsewhere: which ranks belong together, and which have gone.

PyTorch's own test harness starts such threads. When one of its ranks fails, the others are to end: the harness goes
through the collectives that it believes to be in progress and notifies the two conditions of each, while the exception
is being handled. A :class:`HarnessHook` among those collectives passes that on to a job of ours.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from torch._C._distributed_c10d import Store

from simcoll.backends.engine.parking import FreeThreads
from simcoll.backends.engine.world import World

_HARNESS = "torch.testing._internal.distributed.multi_threaded_pg"


class HarnessHook:
    """Imitates a collective of the harness that is in progress."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._start_cond = self._done_cond = _NotifyHook(on_failure)


class _NotifyHook:
    """Imitates a condition; ``on_failure`` is called when it is notified."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.notify = self.notify_all = on_failure

    def __enter__(self) -> None:
        """Do nothing: there is no lock."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: there is no lock."""


def call_on_harness_failure(name: str, on_failure: Callable[[], None]) -> None:
    """Call ``on_failure`` when a test of the harness fails on a rank, until the test has ended."""
    harness = sys.modules.get(_HARNESS)
    if harness is not None:
        local = harness.ProcessLocalGroup
        with local._coll_lock:
            local._cur_coll_on_pgs.setdefault(f"simcoll {name}", HarnessHook(on_failure))


_KEY = "simcoll/threaded"


@dataclass(slots=True, eq=False)
class ThreadedJob:
    """One life of a default group, in one process."""

    key: tuple[str, int]
    world: World
    ranks: dict[int, int] = field(default_factory=dict)
    """The ranks, by the thread in which each made its group."""
    left: set[int] = field(default_factory=set)

    def leave(self, rank: int) -> None:
        """Note that a rank has destroyed its group, or has ended without doing so."""
        with _lock:
            if rank in self.left:
                return
            self.left.add(rank)
            if len(self.left) == self.world.size:
                _jobs.pop(self.key, None)
        self.world.leave(rank)

    def fail_current(self) -> None:
        """Note that the calling thread's rank fails, with the exception that is being handled."""
        rank, error = self.ranks.get(threading.get_ident()), sys.exc_info()[1]
        if rank is not None and error is not None:
            self.world.fail(rank, error)


_jobs: dict[tuple[str, int], ThreadedJob] = {}
_lock = threading.RLock()
"""Reentrant, since a :class:`_ThreadExit` may be collected while the lock is held."""


def join_job(store: Store, rank: int, size: int) -> ThreadedJob:
    """The job of the ranks that share ``store``: the n-th groups that the ranks make there belong together."""
    name: str = store.compare_set(_KEY, "", uuid.uuid4().hex).decode()
    key = name, store.add(f"{_KEY}/{rank}", 1)
    with _lock:
        job = _jobs.get(key)
        if job is None:
            job = _jobs[key] = ThreadedJob(key, World(size, FreeThreads()))
        job.ranks[threading.get_ident()] = rank
    call_on_harness_failure(name, job.fail_current)
    _at_end_of_thread(job, rank)
    return job


class _ThreadExits(threading.local):
    """Objects that belong to a thread, and are collected when it ends."""

    def __init__(self) -> None:
        self.exits: list[_ThreadExit] = []


class _ThreadExit:
    """Notes that a rank has gone, when the thread ends that it belongs to."""

    def __init__(self, job: ThreadedJob, rank: int) -> None:
        self._job, self._rank = job, rank

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._job.leave(self._rank)


_thread_exits = _ThreadExits()


def _at_end_of_thread(job: ThreadedJob, rank: int) -> None:
    gone: Any = [word for word in _thread_exits.exits if word._rank in word._job.left]
    for word in gone:
        _thread_exits.exits.remove(word)
    _thread_exits.exits.append(_ThreadExit(job, rank))
