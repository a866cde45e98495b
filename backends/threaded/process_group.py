"""A torch.distributed backend whose ranks are threads of one process: every call is verified when it runs.

:func:`create_process_group` is a creator for ``torch.distributed.Backend.register_backend``. It may replace the creator
of PyTorch's own "threaded" test backend, under whose harness threads run freely; with ranks that take turns
(:mod:`simcoll.backends.threaded.run`) a run is deterministic.

For ranks whose threads are started elsewhere a job knows which belong together, and which have gone. PyTorch's own test
harness starts such threads. When one of its ranks fails, the others are to end: the harness goes through the
collectives that it believes to be in progress and notifies the two conditions of each, while the exception is being
handled. A :class:`HarnessHook` among those collectives passes that on to a job of ours.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch._C._distributed_c10d import Store, Work
from torch.distributed import distributed_c10d

from simcoll.backends.engine.parking import FreeThreads
from simcoll.backends.engine.python_group import PythonProcessGroup, add_c10d_methods
from simcoll.backends.engine.tensor_data import TensorData
from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.engine.world import World
from simcoll.backends.threaded.work import CoalescedWork, ThreadedWork, Waiting
from simcoll.core.record import Group
from simcoll.recorder.arguments import Arguments, arguments
from simcoll.spec.call import Call

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

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The interpreter's end takes away this module's names.
        if not is_finalizing():
            self._job.leave(self._rank)


_thread_exits = _ThreadExits()


def _at_end_of_thread(job: ThreadedJob, rank: int) -> None:
    gone: Any = [word for word in _thread_exits.exits if word._rank in word._job.left]
    for word in gone:
        _thread_exits.exits.remove(word)
    _thread_exits.exits.append(_ThreadExit(job, rank))


_MOST_CALLS = 8192
"""The most distinct calls that are cached; then the cache is cleared (shapes may keep changing)."""

_calls: dict[tuple[object, ...], Call] = {}
"""Calls by their keys: equal calls of all ranks are one object, so that they compare fast."""


class ThreadedProcessGroup(PythonProcessGroup):
    """One rank's side of a group in a :class:`~simcoll.backends.engine.world.World`.

    ``members`` returns the global ranks, in group-rank order, and is called at the first call. ``leave`` is called
    when the group is shut down; every wait runs within ``waiting()``.
    """

    def __init__(
        self,
        world: World,
        rank: int,
        size: int,
        *,
        members: Callable[[ThreadedProcessGroup], tuple[int, ...]],
        timeout: timedelta,
        store: Store,
        backend_name: str = "threaded",
        leave: Callable[[], None] = lambda: None,
        waiting: Waiting = nullcontext,
    ) -> None:
        super().__init__(rank, size, store, backend_name)
        self.world = world
        self._members = members
        self._limit = timeout.total_seconds()
        self._leave = leave
        self._waiting = waiting
        self._group: Group | None = None
        self._section: list[ThreadedWork] | None = None

    @property
    def group(self) -> Group:
        """The group as in records."""
        if self._group is None:
            self._group = Group(self._name, self._desc, self._members(self))
        return self._group

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of waits."""
        self._limit = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave the group: a later group with its name is another one."""
        self.world.close(self.group, self._rank)
        self._leave()

    abort = shutdown

    # Calls.

    def _start_coalescing(self, device: torch.device) -> None:
        self._section = []

    def _end_coalescing(self, device: torch.device) -> Work:
        section, self._section = self._section or [], None
        return CoalescedWork(section)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait until every rank has come; the error names missing ranks, as c10d's does."""
        found = arguments("monitored_barrier", args, kwargs)
        limit = self._limit if found.timeout is None else found.timeout.total_seconds()
        self._post(found, limit).wait()

    def _collective(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Work:
        found = arguments(name, args, kwargs)
        own = found.timeout
        work = self._post(found, self._limit if own is None else own.total_seconds())
        if self._section is not None:
            self._section.append(work)
        return work

    def _post(self, found: Arguments, limit: float) -> ThreadedWork:
        both = found.tensors.get("inout")
        inputs = found.tensors.get("inputs", []) if both is None else both
        outputs = found.tensors.get("outputs", []) if both is None else both
        ticket = Ticket(self.group, self._rank, _call_of(found), TensorData(inputs, outputs))
        with self._waiting():
            self.world.post(ticket)
        return ThreadedWork(self.world, ticket, outputs, limit, self._waiting)


def _call_of(found: Arguments) -> Call:
    key = found.key
    call = _calls.get(key)
    if call is None:
        if len(_calls) >= _MOST_CALLS:
            _calls.clear()
        call = _calls.setdefault(key, found.call())
    return call


add_c10d_methods(ThreadedProcessGroup)


def create_process_group(store: Store, rank: int, world_size: int, timeout: timedelta) -> ThreadedProcessGroup:
    """Make the group of a rank that is a thread of this process; the ranks of one ``store`` belong together.

    It is a creator for ``torch.distributed.Backend.register_backend``. Threads run freely: a wait for a missing rank
    ends after ``timeout``, or at once if it is known that the rank will not come.
    """
    default = distributed_c10d._world.default_pg
    if isinstance(default, ThreadedProcessGroup):
        return ThreadedProcessGroup(
            default.world, rank, world_size, members=_MembersIn(distributed_c10d._world), timeout=timeout, store=store
        )
    job: ThreadedJob = join_job(store, rank, world_size)
    return ThreadedProcessGroup(
        job.world,
        rank,
        world_size,
        members=lambda group: tuple(range(world_size)),
        timeout=timeout,
        store=store,
        leave=lambda: job.leave(rank),
    )


class _MembersIn:
    """Looks up a group's members in c10d's tables, which may be local to the calling thread."""

    def __init__(self, world: Any) -> None:
        self._ranks = world.pg_group_ranks

    def __call__(self, group: ThreadedProcessGroup) -> tuple[int, ...]:
        known = self._ranks.get(group)
        return tuple(sorted(known, key=known.__getitem__)) if known else tuple(range(group.size()))
