"""Runs what users attached to the futures of queued calls, on threads that nothing else waits for.

Neither the queue's thread nor a backend's own may run it: a callback may make calls of its own and wait for them,
and Gloo's barrier waits for every call before it, the one included whose callback is running.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

_THREADS = 2
"""As many as a Gloo group has: one callback may wait for what another completes."""


class Completions:
    """Threads, started with the first piece of work, that complete futures."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._pid: int | None = None
        self._starting = threading.Lock()

    def run(self, complete: Callable[[], object]) -> None:
        """Have ``complete`` called soon."""
        with self._starting:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._queue = SimpleQueue()
                for _ in range(_THREADS):
                    threading.Thread(target=self._work, args=(self._queue,), name=self._name, daemon=True).start()
        self._queue.put(complete)

    @staticmethod
    def _work(queue: SimpleQueue[Callable[[], object]]) -> None:
        while True:
            queue.get()()
