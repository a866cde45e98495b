"""The queue of the calls of a group that are proved before they run: ``detail`` mode."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from simcoll.recorder.recorder import Entry, Written


class ProofQueue:
    """The calls of a group that are not launched yet: one at a time is served, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._listeners = 0
        """The threads that wait until something changes."""
        self.waiting: deque[Entry | Written] = deque()
        """The calls that were made and are not launched yet; what is added here is added when it is written down."""

    def join(self, begin: Callable[[], Entry], joined: Callable[[Entry], object] = bool) -> Entry:
        """Make a call's entry, give it its place and call ``joined`` with it, in one step."""
        with self._lock:
            entry = begin()
            self.waiting.append(entry)
            try:
                joined(entry)
            except BaseException:
                # The next call must not wait for it.
                self._remove(entry)
                raise
        return entry

    def await_turn(self, entry: Entry | Written) -> None:
        """Return when every call before this one has left."""
        if self.waiting[0] is not entry:
            self._wait_for(lambda: self.waiting[0] is entry)

    def leave(self, entry: Entry | Written) -> None:
        """Make way for the next; also for a call that was given up before its turn."""
        with self._lock:
            if self.waiting[0] is entry:
                self.waiting.popleft()
            else:
                self._remove(entry)
            if self._listeners:
                self._changed.notify_all()

    def await_end(self, seconds: float | None = None) -> None:
        """Return when no call waits any more, or after ``seconds``; None: without limit."""
        self._wait_for(lambda: not self.waiting, seconds)

    def _wait_for(self, happened: Callable[[], bool], seconds: float | None = None) -> None:
        with self._lock:
            self._listeners += 1
            try:
                self._changed.wait_for(happened, seconds)
            finally:
                self._listeners -= 1

    def _remove(self, entry: Entry | Written) -> None:
        # Equal calls are not the same; and calls may be added meanwhile, as that needs no lock.
        del self.waiting[next(place for place, one in enumerate(list(self.waiting)) if one is entry)]
