"""The ``Work`` of a call that goes the quick way (:mod:`simcoll.recorder.quick`) to the end of the wait for it.

A wait, which is what programs ask of most Works, and the note of its end are one compiled step. As soon as anything
else is asked of it, it becomes an ordinary :class:`~simcoll.wrapper.work.RecordedWork`, which can do everything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, cast

from torch.distributed import Work

from simcoll.recorder.dynamo import leave_class_uncompiled, leave_uncompiled
from simcoll.recorder.quick import OpenCall
from simcoll.wrapper.work import NO_TIMEOUT, CheckedWork, RecordedWork


class QuickWork(Work):
    """A call of mode ``record`` that the backend has been given."""

    call: OpenCall
    ordinary: ClassVar[type[RecordedWork]] = RecordedWork

    @property
    def timeout(self) -> timedelta:
        """The time limit of the call (torch 2.15)."""
        return ordinary(self).timeout

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait as the backend's Work does; raises what it raises, or a mismatch that was found meanwhile."""
        if timeout is NO_TIMEOUT or timeout <= NO_TIMEOUT:
            try:
                done = self.call.wait()
            except Exception as error:
                return ordinary(self).wait_failed(error)
            if done is not None:
                return done
        return ordinary(self).wait(timeout)


class CheckedQuickWork(QuickWork):
    """A call of mode ``check``, whose wait looks up at times."""

    ordinary = CheckedWork


_becoming = threading.Lock()


def ordinary(work: QuickWork) -> RecordedWork:
    """The Work as an ordinary one, which it is from then on."""
    found = cast("RecordedWork", work)
    with _becoming:
        # Another thread may have come first.
        if isinstance(work, QuickWork):
            call = work.call
            assert call.inner is not None
            entry, flight, landing = call.owner.taken(call)
            found.__class__ = work.ordinary
            found.go_on(call.inner, entry, flight, landing)
    return found


def _asked(name: str) -> Callable[..., Any]:
    def method(self: QuickWork, *args: Any) -> Any:
        return getattr(ordinary(self), name)(*args)

    method.__name__ = name
    method.__doc__ = vars(RecordedWork)[name].__doc__
    return method


for _name in (*(name for name in vars(Work) if name in vars(RecordedWork)), "has_ended", "tell_when_waited"):
    if not _name.startswith("__") and _name not in vars(QuickWork):
        setattr(QuickWork, _name, _asked(_name))
leave_class_uncompiled(QuickWork)
leave_uncompiled(ordinary)
