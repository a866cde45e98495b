"""Daemon threads that run pieces of work in order, started with the first piece and ended with the last."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

_Work = Callable[[], object]


class WorkerThreads:
    """``count`` threads that take work from one queue; they belong to the process that gave the work."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = name
        self._count = count
        self._queue: SimpleQueue[_Work | None] | None = None
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def run(self, work: _Work) -> None:
        """Have ``work`` called soon; with one thread, after all that was given before."""
        with self._guard:
            # Threads do not survive a fork; what they had to do is the parent's.
            if self._queue is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._queue = SimpleQueue()
                for _ in range(self._count):
                    threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True).start()
            self._queue.put(work)

    def close(self) -> None:
        """End the threads after the work that they were given; later work starts new ones."""
        with self._guard:
            if self._queue is not None and self._pid == os.getpid():
                for _ in range(self._count):
                    self._queue.put(None)
            self._queue = None


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    # The work is held by nothing while the thread waits for the next: it may keep tensors alive.
    while (work := queue.get()) is not None:
        try:
            work()
        except Exception:
            kind, error, traceback = sys.exc_info()
            assert kind is not None
            threading.excepthook(threading.ExceptHookArgs((kind, error, traceback, threading.current_thread())))
            del error, traceback
        del work
