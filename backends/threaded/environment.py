"""The environment, exit functions and started threads of each rank that is a thread, which a process has only once."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal, RankThreads, acting_as, acting_rank

_ABSENT = None


class RankEnvironment(MutableMapping[str, str]):
    """Replaces ``os.environ``: a rank sees its own changes, and the process's value of all other variables."""

    def __init__(self, process: MutableMapping[str, str]) -> None:
        self._process = process
        self._changes: RankLocal[dict[str, str | None]] = RankLocal(dict)

    def __getitem__(self, key: str) -> str:
        changes = self._changes.here
        value = changes[key] if key in changes else self._process.get(key)
        if value is _ABSENT:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value).__name__}")
        if acting_rank() is None:
            self._process[key] = value
        else:
            self._changes.here[key] = value

    def __delitem__(self, key: str) -> None:
        if acting_rank() is None:
            del self._process[key]
        else:
            _ = self[key]
            self._changes.here[key] = _ABSENT

    def __iter__(self) -> Iterator[str]:
        changes = self._changes.here
        yield from [key for key in self._process if key not in changes]
        yield from [key for key, value in changes.items() if value is not _ABSENT]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, str]:
        """The variables as this rank sees them."""
        return dict(self)

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**self, **other}

    def __ior__(self, other: Mapping[str, str]) -> RankEnvironment:
        self.update(other)
        return self

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**other, **self}


class ExitFunctions:
    """The functions that a rank has registered with ``atexit``, called at the rank's own end."""

    def __init__(self) -> None:
        self._functions: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []

    def register(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[..., object]:
        """As ``atexit.register``."""
        self._functions.append((function, args, kwargs))
        return function

    def unregister(self, function: Callable[..., object]) -> None:
        """As ``atexit.unregister``."""
        self._functions = [entry for entry in self._functions if entry[0] != function]

    def run(self) -> None:
        """Call the functions, the last one first."""
        while self._functions:
            function, args, kwargs = self._functions.pop()
            function(*args, **kwargs)


exit_functions = RankLocal(ExitFunctions)


def replace_environment(patches: Patches, join: Callable[[RankThreads], AbstractContextManager[object]]) -> None:
    """Give every rank an environment, exit functions and threads of its own.

    A thread that a rank has started runs within ``join(rank)``.
    """
    patches.replace(os, "environ", RankEnvironment(os.environ))
    for name in ("register", "unregister"):
        patches.wrap(atexit, name, functools.partial(_of_rank, name))
    patches.wrap(threading.Thread, "start", functools.partial(_inheriting, join=join))


def _of_rank(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        owner = original if acting_rank() is None else getattr(exit_functions.here, name)
        return owner(*args, **kwargs)

    return function


own_threads: RankLocal[list[threading.Thread]] = RankLocal(list)
"""The threads that a rank has started."""


def _inheriting(
    start: Callable[[threading.Thread], None], join: Callable[[RankThreads], AbstractContextManager[object]]
) -> Callable[[threading.Thread], None]:
    def start_for_rank(thread: threading.Thread) -> None:
        rank = acting_rank()
        if rank is not None:
            own_threads.here.append(thread)
            thread.run = _joined(thread.run, rank, join)  # type: ignore[method-assign]
        with acting_as(None):
            # Until it runs, the thread belongs to no rank, and its start does not wait for a turn.
            start(thread)

    return start_for_rank


def _joined(
    run: Callable[[], None], rank: RankThreads, join: Callable[[RankThreads], AbstractContextManager[object]]
) -> Callable[[], None]:
    def run_for_rank() -> None:
        with acting_as(rank), join(rank):
            run()

    return run_for_rank


def join_own_threads() -> None:
    """Wait for the threads of this rank, except daemons, as an interpreter does at its end."""
    for thread in own_threads.here:
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
