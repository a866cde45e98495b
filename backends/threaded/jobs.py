"""Jobs whose ranks are threads that somebody else starts: who belongs together, and who has gone."""

from __future__ import annotations

import sys
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_c10d import Store

from simcoll.backends.engine.free_threads import FreeThreads
from simcoll.backends.engine.world import World
from simcoll.backends.threaded.torch_harness import ring_with_harness

_KEY = "simcoll/threaded"


@dataclass(slots=True, eq=False)
class Job:
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


_jobs: dict[tuple[str, int], Job] = {}
_lock = threading.RLock()
"""Held again where a thread's last word is said while it is held: whenever its memory is let go."""


def join_job(store: Store, rank: int, size: int) -> Job:
    """The job that meets in ``store``: the n-th group that each rank makes there is one life."""
    name: str = store.compare_set(_KEY, "", uuid.uuid4().hex).decode()
    key = name, store.add(f"{_KEY}/{rank}", 1)
    with _lock:
        job = _jobs.get(key)
        if job is None:
            job = _jobs[key] = Job(key, World(size, FreeThreads()))
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

    def __init__(self, job: Job, rank: int) -> None:
        self._job, self._rank = job, rank

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._job.leave(self._rank)


_ending = _Ending()


def _at_end_of_thread(job: Job, rank: int) -> None:
    gone: Any = [word for word in _ending.last_words if word._rank in word._job.left]
    for word in gone:
        _ending.last_words.remove(word)
    _ending.last_words.append(_LastWord(job, rank))
