"""PyTorch's own harness for tests whose ranks are threads: when one of them fails, the others are to end.

The harness tells its own groups so: it goes through the collectives that it believes to be in progress and notifies the
two conditions of each, while the exception is being handled. What stands there for a job of ours rings a bell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

_HARNESS = "torch.testing._internal.distributed.multi_threaded_pg"


class Alarm:
    """Looks like a collective of the harness that is in progress."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._start_cond = self._done_cond = _Bell(ring)


class _Bell:
    """Looks like a condition; who notifies it rings."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.notify = self.notify_all = ring

    def __enter__(self) -> None:
        """Nothing is locked."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing was locked."""


def ring_with_harness(name: str, ring: Callable[[], None]) -> None:
    """Have ``ring`` called when a test of the harness fails on a rank, until the test has ended."""
    harness = sys.modules.get(_HARNESS)
    if harness is not None:
        local = harness.ProcessLocalGroup
        with local._coll_lock:
            local._cur_coll_on_pgs.setdefault(f"simcoll {name}", Alarm(ring))
