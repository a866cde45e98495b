"""The queue of the calls of a group that are proved before they run: ``detail`` mode."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from simcoll.recorder.recorder import Entry, Written


class ProofQueue:
    """The calls of a group that are not launched yet: one at a time is served, in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.waiting: deque[Entry | Written] = deque()
        """The calls that were made and are not launched yet; what is added here is added when it is written down."""

    def join(self, begin: Callable[[], Entry], joined: Callable[[Entry], object] = bool) -> Entry:
        """Make a call's entry, give it its place and call ``joined`` with it, in one step."""
        with self._changed:
            entry = begin()
            self.waiting.append(entry)
            try:
                joined(entry)
            except BaseException:
                # The next call must not wait for it.
                self.waiting.remove(entry)
                raise
        return entry

    def await_turn(self, entry: Entry | Written) -> None:
        """Return when every call before this one has left."""
        if self.waiting[0] is not entry:
            with self._changed:
                self._changed.wait_for(lambda: self.waiting[0] is entry)

    def leave(self, entry: Entry | Written) -> None:
        """Make way for the next; also for a call that was given up before its turn."""
        with self._changed:
            self.waiting.remove(entry)
            self._changed.notify_all()

    def await_end(self, seconds: float | None = None) -> None:
        """Return when no call waits any more, or after ``seconds``; None: without limit."""
        with self._changed:
            self._changed.wait_for(lambda: not self.waiting, seconds)
