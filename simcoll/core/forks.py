"""Objects of one process that reset themselves in a forked child, which lacks the threads that use them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from weakref import WeakSet


class ProcessOwned(ABC):
    """An object of one process, of which a forked child lets go before it does anything else.

    A subclass calls ``__init__`` here when it is complete: a thread may fork at any moment.
    """

    def __init__(self) -> None:
        _owned.add(self)

    @abstractmethod
    def forked(self) -> None:
        """Let go of what is the parent's. A lock is to be replaced: a thread that is not here may hold it."""


_owned: WeakSet[ProcessOwned] = WeakSet()


def _let_go() -> None:
    for owned in list(_owned):
        owned.forked()


os.register_at_fork(after_in_child=_let_go)
