"""Scripts that start their ranks themselves (``mp.spawn``, ``Process``) or set their rank in ``init_process_group``.

In a dry run each rank of such a script runs in a process already: of the ranks that the script starts there, only the
process's own rank runs.
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

from simcoll.core.patches import Patches
from simcoll.errors import ConfigurationError


class SpawnedLaunch:
    """Runs only this rank of those that its script starts, and checks the rank that the script declares."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._size = world_size
        self._pid = os.getpid()

    def install(self, patches: Patches) -> None:
        """Replace how this process starts others, so that those have its fake torch.distributed, not a real one."""
        for name in ("spawn", "start_processes"):
            for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
                patches.wrap(module, name, self._in_this_process)
        forked: Any = context.ForkProcess
        for kind in (context.SpawnProcess, context.ForkServerProcess):
            patches.replace(kind, "_Popen", staticmethod(forked._Popen))

    def _in_this_process(self, spawn: Callable[..., Any]) -> Callable[..., Any]:
        """Let ``spawn`` call the function here, for the one process of ``nprocs`` that is this rank."""

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
        """The rank and world size that a call of ``init_process_group`` declares, or else the environment.

        Raises :class:`ConfigurationError` where they are not those of the dry run. A process that the script has
        started for another rank ends here, since that rank runs in a process of its own.
        """
        number, size = _declared(given)
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
    """The result of ``spawn`` with ``join=False``: the process has ended already."""

    processes: tuple[object, ...] = ()

    def join(self, *_: object, **__: object) -> bool:
        """True: all have ended."""
        return True

    def pids(self) -> list[int]:
        """Empty: no process has been started."""
        return []


def _declared(given: Mapping[str, Any]) -> tuple[int, int]:
    query = parse_qs(urlsplit(given.get("init_method") or "").query)

    def one(name: str, variable: str) -> int:
        number = given.get(name, -1)
        number = query[name][0] if name in query else number
        return int(os.environ[variable] if number in (-1, None) else number)

    return one("rank", "RANK"), one("world_size", "WORLD_SIZE")
