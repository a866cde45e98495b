"""Mismatches that were found in the background, on their way to a thread that the program hears.

An exception on a thread of simcoll's own would be heard by nobody, and one in any helper thread perhaps by nobody too.
So each is raised once: in the main thread, or in the one that made the call, whichever comes first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from simcoll.errors import CollectiveMismatchError


class Verdicts:
    """The mismatches of this process that nobody has been told of yet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[CollectiveMismatchError, int]] = []
        self._expected = 0

    def add(self, error: CollectiveMismatchError, maker: int) -> None:
        """Have an error raised; ``maker`` is the thread that made the call."""
        with self._changed:
            self._due.append((error, maker))
            self._changed.notify_all()

    def raise_due(self) -> None:
        """Raise an error that this thread is to hear of, if there is one."""
        if self._due and (error := self._take()) is not None:
            raise error

    @contextmanager
    def expected(self) -> Iterator[None]:
        """While ranks find out why their words do not add up to zero."""
        with self._changed:
            self._expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._expected -= 1
                self._changed.notify_all()

    def awaited(self, seconds: float) -> CollectiveMismatchError | None:
        """An error that this thread is to hear of; where one may be about to be found, wait for it that long."""
        with self._changed:
            self._changed.wait_for(lambda: self._due or not self._expected, seconds)
        return self._take()

    def rest(self) -> list[CollectiveMismatchError]:
        """What nobody has been told, and nobody will be."""
        with self._changed:
            rest = [error for error, _ in self._due]
            self._due.clear()
        return rest

    def _take(self) -> CollectiveMismatchError | None:
        this = threading.get_ident()
        everything = this == threading.main_thread().ident
        with self._changed:
            for place, (error, maker) in enumerate(self._due):
                if everything or maker == this:
                    del self._due[place]
                    return error
        return None

    def forget(self) -> None:
        """Start anew: this process is a forked child, and what was found concerns its parent."""
        self.__init__()  # type: ignore[misc]  # the lock may be held by a thread that is not here


PENDING_ERRORS = Verdicts()
os.register_at_fork(after_in_child=PENDING_ERRORS.forget)
