"""Values of which each rank has its own, whether a rank is a process or one of several threads of a process.

A process whose ranks are threads assigns each thread to its rank (:func:`acting_as`); everywhere else
there is one rank, and a value is found at the cost of one look.

A :class:`ProcessOwned` object belongs to one process: a forked child, which has the object but not the threads that use
it, lets go of it first.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakSet


class ProcessOwned(ABC):
    """An object of one process, of which a forked child lets go before it does anything else.

    A subclass calls ``__init__`` here when it is complete: a thread may fork at any moment.
    """

    def __init__(self) -> None:
        _owned.add(self)

    @abstractmethod
    def forked(self) -> None:
        """Let go of the parent's state. A lock is to be replaced: a thread that is not here may hold it."""


_owned: WeakSet[ProcessOwned] = WeakSet()


def _let_go() -> None:
    for owned in list(_owned):
        owned.forked()


os.register_at_fork(after_in_child=_let_go)


T = TypeVar("T")


class RankThreads:
    """A rank whose threads share the process with other ranks: its number, its main thread, the values that it has."""

    __slots__ = ("main_thread", "rank", "values")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.main_thread: int | None = None
        self.values: dict[object, Any] = {}


class _Thread(threading.local):
    rank: RankThreads | None = None


_thread = _Thread()


def acting_rank() -> RankThreads | None:
    """The rank to which the calling thread belongs; None where the whole process is one."""
    return _thread.rank


acting: list[RankThreads | None] = []
"""The ranks to which threads are assigned now; empty in a process that is one rank."""


@contextmanager
def acting_as(rank: RankThreads | None) -> Iterator[None]:
    """Assigns the calling thread to ``rank`` within the block."""
    acting.append(rank)
    before, _thread.rank = _thread.rank, rank
    try:
        yield
    finally:
        _thread.rank = before
        acting.remove(rank)


def main_thread_of_rank() -> int | None:
    """The thread in which the program of the calling thread's rank began."""
    rank = _thread.rank
    return threading.main_thread().ident if rank is None else rank.main_thread


class RankLocal(Generic[T]):
    """A value of which every rank has one of its own, made by ``make`` when it is first asked for."""

    __slots__ = ("_make", "process")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.process = make()
        """The value where the whole process is one rank."""

    @property
    def here(self) -> T:
        """The value of the calling thread's rank."""
        rank = _thread.rank
        if rank is None:
            return self.process
        if self not in rank.values:
            # Two threads of a rank may come at once: the first value counts.
            rank.values.setdefault(self, self._make())
        value: T = rank.values[self]
        return value

    def set(self, value: T) -> None:
        """Give the calling thread's rank another value."""
        rank = _thread.rank
        if rank is None:
            self.process = value
        else:
            rank.values[self] = value
