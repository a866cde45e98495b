"""Mismatches that were found in the background and wait to be raised in a thread of the program.

An exception in a thread of simcoll's own would be lost, and one in any helper thread perhaps too. So each is raised
once: in the main thread, or in the thread that made the call, whichever comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from simcoll.core.rank_local import ProcessOwned
from simcoll.errors import CollectiveMismatchError


class PendingErrors(ProcessOwned):
    """The mismatches of this process that were not raised yet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.due: list[tuple[CollectiveMismatchError, int]] = []
        """The errors, each with the thread that made the call."""
        self._expected = 0
        super().__init__()

    def add(self, error: CollectiveMismatchError, maker: int) -> None:
        """Have an error raised; ``maker`` is the identifier of the thread that made the call."""
        with self._changed:
            self.due.append((error, maker))
            self._changed.notify_all()

    def raise_due(self) -> None:
        """Raise an error that is to be raised in this thread, if there is one."""
        if self.due and (error := self._take()) is not None:
            raise error

    @contextmanager
    def expected(self) -> Iterator[None]:
        """A block in which ranks find the reason why their words do not add up to zero, and may add an error."""
        with self._changed:
            self._expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._expected -= 1
                self._changed.notify_all()

    def awaited(self, seconds: float) -> CollectiveMismatchError | None:
        """An error that is to be raised in this thread; where one is expected, wait for it that long."""
        with self._changed:
            self._changed.wait_for(lambda: self.due or not self._expected, seconds)
        return self._take()

    def rest(self) -> list[CollectiveMismatchError]:
        """Take out every error, to be raised no more."""
        with self._changed:
            rest = [error for error, _ in self.due]
            self.due.clear()
        return rest

    def _take(self) -> CollectiveMismatchError | None:
        this = threading.get_ident()
        everything = this == threading.main_thread().ident
        with self._changed:
            for place, (error, maker) in enumerate(self.due):
                if everything or maker == this:
                    del self.due[place]
                    return error
        return None

    def forked(self) -> None:
        """Start afresh in a forked child: pending errors concern the parent."""
        self._changed = threading.Condition()
        self.due.clear()
        self._expected = 0


PENDING_ERRORS = PendingErrors()
