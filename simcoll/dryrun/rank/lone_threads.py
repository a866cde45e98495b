"""Whose the calls of a dry run's rank are, where its program has threads: one that waits holds up no other."""

from __future__ import annotations

import threading

from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.wrapper.pipeline import Conductor


class LoneThreads:
    """Notes in the record that the calls that follow are another thread's than those before.

    The threads that C++ makes for a backward pass are the main thread's: it waits for them.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._last = 0

    def note(self, conductor: Conductor | None) -> None:
        """The calling thread is about to make a call."""
        number = self._number(threading.current_thread())
        if number != self._last and conductor is not None:
            self._last = number
            conductor.log.recorder.event(THREAD, number=number)

    def _number(self, thread: threading.Thread) -> int:
        if thread is threading.main_thread() or isinstance(thread, threading._DummyThread):
            return 0
        # Thread ids are used again; the object's own number is not while it lives.
        return self._numbers.setdefault(id(thread), len(self._numbers) + 1)
