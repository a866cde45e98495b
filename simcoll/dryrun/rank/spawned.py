"""Scripts that start their ranks themselves (``mp.spawn``, ``Process``), and scripts that say which rank they are.

In a dry run the ranks of such a script have been started already: of those that it starts, each rank is its own alone.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import context
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.multiprocessing

from simcoll.errors import ConfigurationError


class SpawnedLaunch:
    """What a rank of a dry run makes of the ranks that its script starts, and of the rank that it says it is."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._size = world_size
        self._pid = os.getpid()

    def take_over(self) -> None:
        """Replace, for good, how this process starts others: those have its torch.distributed, not one of their own."""
        for name in ("spawn", "start_processes"):
            for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
                if hasattr(module, name):
                    setattr(module, name, self._in_this_process(getattr(module, name)))
        forked: Any = context.ForkProcess
        for kind in (context.SpawnProcess, context.ForkServerProcess):
            kind._Popen = staticmethod(forked._Popen)  # type: ignore[method-assign]

    def _in_this_process(self, spawn: Callable[..., Any]) -> Callable[..., Any]:
        """Call the function for the one process of ``nprocs`` that would be this rank."""

        @functools.wraps(spawn)
        def call(
            fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, **_: Any
        ) -> Any:
            try:
                fn(self._rank % nprocs, *args)
            except SystemExit as end:
                if end.code:
                    raise
            return None if join else _Ended()

        return call

    def place(self, given: Mapping[str, Any]) -> tuple[int, int]:
        """The rank and world size that a call of ``init_process_group`` states, or else the environment.

        Raises :class:`ConfigurationError` where they are not the dry run's; a process that the script has started for
        another rank ends here, as that one is run elsewhere.
        """
        number, size = _stated(given)
        if (number, size) == (self._rank, self._size):
            return number, size
        if os.getpid() != self._pid and size == self._size:
            sys.stdout.flush()
            os._exit(0)
        raise ConfigurationError(
            f"rank {self._rank}: the script says that it is rank {number} of {size}, and this is a dry run of "
            f"{self._size}: have it take both from RANK and WORLD_SIZE, or give --world-size {size}"
        )


class _Ended:
    """What ``spawn`` gives where it is not to wait: the process has ended already."""

    processes: tuple[object, ...] = ()

    def join(self, *_: object, **__: object) -> bool:
        """Whether all have ended."""
        return True

    def pids(self) -> list[int]:
        """No process has been started."""
        return []


def _stated(given: Mapping[str, Any]) -> tuple[int, int]:
    query = parse_qs(urlsplit(given.get("init_method") or "").query)

    def one(name: str, variable: str) -> int:
        number = given.get(name, -1)
        number = query[name][0] if name in query else number
        return int(os.environ[variable] if number in (-1, None) else number)

    return one("rank", "RANK"), one("world_size", "WORLD_SIZE")
