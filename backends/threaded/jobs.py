"""Jobs whose ranks are threads that somebody else starts: who belongs together, and who has gone.

PyTorch's own harness for tests whose ranks are threads: when one of them fails, the others are to end.

The harness tells its own groups so: it goes through the collectives that it believes to be in progress and notifies the
two conditions of each, while the exception is being handled. What stands there for a job of ours rings a bell.
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


class Alarm:
    """Looks like a collective of the harness that is in progress."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._start_cond = self._done_cond = _Bell(ring)


class _Bell:
    """Looks like a condition; who notifies it rings."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.notify = self.notify_all = ring

    def __enter__(self) -> None:
        """Nothing is locked."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing was locked."""


def ring_with_harness(name: str, ring: Callable[[], None]) -> None:
    """Have ``ring`` called when a test of the harness fails on a rank, until the test has ended."""
    harness = sys.modules.get(_HARNESS)
    if harness is not None:
        local = harness.ProcessLocalGroup
        with local._coll_lock:
            local._cur_coll_on_pgs.setdefault(f"simcoll {name}", Alarm(ring))


_KEY = "simcoll/threaded"


@dataclass(slots=True, eq=False)
class ThreadedJob:
    """One life of a default group, in one process."""

    key: tuple[str, int]
    world: World
    ranks: dict[int, int] = field(default_factory=dict)
    """By the thread in which a rank made its group."""
    left: set[int] = field(default_factory=set)

    def leave(self, rank: int) -> None:
        """A rank has destroyed its group, or has ended without."""
        with _lock:
            if rank in self.left:
                return
            self.left.add(rank)
            if len(self.left) == self.world.size:
                _jobs.pop(self.key, None)
        self.world.leave(rank)

    def alarm(self) -> None:
        """The rank whose thread this is fails, with the exception that is being handled."""
        rank, error = self.ranks.get(threading.get_ident()), sys.exc_info()[1]
        if rank is not None and error is not None:
            self.world.fail(rank, error)


_jobs: dict[tuple[str, int], ThreadedJob] = {}
_lock = threading.RLock()
"""Held again where a thread's last word is said while it is held: whenever its memory is let go."""


def join_job(store: Store, rank: int, size: int) -> ThreadedJob:
    """The job that meets in ``store``: the n-th group that each rank makes there is one life."""
    name: str = store.compare_set(_KEY, "", uuid.uuid4().hex).decode()
    key = name, store.add(f"{_KEY}/{rank}", 1)
    with _lock:
        job = _jobs.get(key)
        if job is None:
            job = _jobs[key] = ThreadedJob(key, World(size, FreeThreads()))
        job.ranks[threading.get_ident()] = rank
    ring_with_harness(name, job.alarm)
    _at_end_of_thread(job, rank)
    return job


class _Ending(threading.local):
    """What belongs to a thread, and goes with it."""

    def __init__(self) -> None:
        self.last_words: list[_LastWord] = []


class _LastWord:
    """Says that a rank has gone, when the thread ends to which it belongs."""

    def __init__(self, job: ThreadedJob, rank: int) -> None:
        self._job, self._rank = job, rank

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._job.leave(self._rank)


_ending = _Ending()


def _at_end_of_thread(job: ThreadedJob, rank: int) -> None:
    gone: Any = [word for word in _ending.last_words if word._rank in word._job.left]
    for word in gone:
        _ending.last_words.remove(word)
    _ending.last_words.append(_LastWord(job, rank))
