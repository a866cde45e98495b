"""The ``Work`` that a recorded group returns: it tells the black box when the call ended.

torch's C++ sees only ``wait`` and ``get_future`` of a Work written in Python; Python callers see everything.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from torch.distributed import Work
from torch.futures import Future

from simcoll.call import ANY_SOURCE
from simcoll.dynamo import leave_class_uncompiled
from simcoll.errors import CollectiveMismatchError
from simcoll.in_flight import Flight, flights
from simcoll.record import State
from simcoll.recorder import Entry
from simcoll.threads import Threads
from simcoll.verdicts import VERDICTS

_NO_TIMEOUT = timedelta(0)

_LOOK_UP = timedelta(seconds=0.5)
_VERDICT_SECONDS = 5.0
"""How long a wait that failed waits for ranks that are about to find out why."""


class RecordedWork(Work):
    """A call that the backend has been given; everything is the backend's own Work, but for the note of its end."""

    def __init__(
        self, inner: Work, entry: Entry, flight: Flight | None = None, check: Callable[[], None] | None = None
    ) -> None:
        """``check`` is called once, when the call is done, and may raise."""
        super().__init__()
        self._inner = inner
        self._entry = entry
        self._check = check
        self._flight = flight
        if flight is not None:
            flight.follow(self)

    def __del__(self) -> None:
        if (flight := getattr(self, "_flight", None)) is not None and not sys.is_finalizing():
            flight.dropped()

    def has_ended(self) -> bool:
        """Whether the backend says that the call has ended; asking is no waiting."""
        return self._inner.is_completed()

    def _begin_wait(self) -> None:
        self._entry.awaited()
        if self._flight is not None:
            self._flight.awaited()
            self._flight = None

    def _end_flight(self) -> None:
        if self._flight is not None:
            self._flight.end()
            self._flight = None

    def _observed(self, ended: bool) -> bool:
        """A program that has been told of the end need not wait for it."""
        if ended:
            self._entry.awaited()
            self._end_flight()
            flights.waits += 1
        return ended

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait as the backend's Work does; raises what it raises."""
        self._begin_wait()
        try:
            done = self._await(timeout)
        except CollectiveMismatchError:
            # Raised on the way, in place of a longer wait: the call itself goes on.
            raise
        except Exception as error:
            self._failed(error)
            raise
        self._ended()
        flights.waits += 1
        return done

    def _ended(self) -> None:
        """Write down that it ended well; a receive from any source knows only now whose message it took."""
        if self._entry.call.peer == ANY_SOURCE:
            with contextlib.suppress(RuntimeError):
                self._entry.received_from(self._inner._source_rank())
        check, self._check = self._check, None
        if check is not None:
            try:
                check()
            except CollectiveMismatchError:
                self._entry.finished(State.FAILED)
                raise
        self._entry.finished()

    def _await(self, timeout: timedelta) -> bool:
        return self._inner.wait(timeout) if timeout > _NO_TIMEOUT else self._inner.wait()

    def _failed(self, error: Exception) -> None:
        """Write down how it ended; some backends refuse a call only when they come to run it."""
        if self._entry.log.refusal(self._entry.call) is None:
            self._entry.finished(State.FAILED)
            self._entry.log.recorder.failed(self._entry, error)
        else:
            self._entry.finished(State.REJECTED)
            self._entry.log.recorder.rejected(self._entry, error)

    def get_future(self) -> Future[Any]:
        """The backend's future, whose completion is noted too."""
        self._entry.handed_on()
        self._end_flight()
        future = self._inner.get_future()
        future.add_done_callback(lambda done: self._entry.finished())
        return future

    def is_completed(self) -> bool:
        """Whether the call has ended, without waiting."""
        return self._observed(self.has_ended())

    def is_success(self) -> bool:
        """Whether the call has ended well, without waiting."""
        return self._observed(self._inner.is_success())

    def exception(self) -> Any:
        """What the call failed with, or None."""
        return self._inner.exception()

    def result(self) -> Any:
        """The tensors that the call produced."""
        # Gloo raises where the call has not ended; a result that is had tells of the end.
        result = self._inner.result()
        self._begin_wait()
        return result

    def source_rank(self) -> int:
        """The group rank that a receive from any source got its message from."""
        return self._inner.source_rank()

    def _source_rank(self) -> int:
        return self._inner._source_rank()

    def synchronize(self) -> None:
        """Make the current stream wait, as the backend's Work does."""
        self._begin_wait()
        self._inner.synchronize()

    def block_current_stream(self) -> None:
        """Make the current stream wait without blocking the host."""
        self._begin_wait()
        self._inner.block_current_stream()

    def get_future_result(self) -> Future[Any]:
        """The future of the call's WorkResult."""
        return self._inner.get_future_result()  # type: ignore[attr-defined,no-any-return]

    def _get_duration(self) -> float:
        return self._inner._get_duration()  # type: ignore[attr-defined,no-any-return]

    def _get_op_type(self) -> Any:
        return self._inner._get_op_type()  # type: ignore[attr-defined]


class CheckedWork(RecordedWork):
    """A call that is proved in the background: whoever waits for it is told of what was found meanwhile.

    ``waits_on_host`` is that of the backend, see :class:`~simcoll.backends.base.Backend`.
    """

    def __init__(self, inner: Work, entry: Entry, flight: Flight | None = None, *, waits_on_host: bool) -> None:
        super().__init__(inner, entry, flight)
        self._waits_on_host = waits_on_host

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait as the backend's Work does; raises what it raises, or why it did not complete."""
        VERDICTS.raise_due()
        try:
            return super().wait(timeout)
        except CollectiveMismatchError:
            raise
        except Exception as error:
            # The first rank that raises a mismatch may end, and its peers lose the connection before they know why.
            if (verdict := VERDICTS.awaited(_VERDICT_SECONDS)) is not None:
                raise verdict from error
            raise

    def _await(self, timeout: timedelta) -> bool:
        """A call that ranks disagree about may never end: look up now and then."""
        while self._waits_on_host and timeout <= _NO_TIMEOUT:
            try:
                return self._inner.wait(_LOOK_UP)
            except RuntimeError:
                if self._inner.is_completed():
                    break
            VERDICTS.raise_due()
        return super()._await(timeout)


class QueuedWork(RecordedWork):
    """A call that is proved, then launched, by the group's queue; everything waits for that first."""

    def __init__(self, entry: Entry, callbacks: Threads, flight: Flight | None = None) -> None:
        super().__init__(Work(), entry, flight)
        # Neither the queue's thread nor a backend's own may run what users attach to a future: a callback may make
        # calls of its own and wait for them, and Gloo's barrier waits for every call before it, its own included.
        self._callbacks = callbacks
        self._decided = threading.Lock()
        self._decided.acquire()
        self._error: Exception | None = None
        self._launched = False
        self._future: Future[Any] | None = None
        self._trigger: Future[Any] | None = None
        self._guard = threading.Lock()

    def settle(self, inner: Work | None, error: Exception | None) -> None:
        """Called once, by the queue: the backend's Work, or why the call was not launched."""
        with self._guard:
            if inner is not None:
                self._inner = inner
            self._error = error
            self._launched = True
            trigger = self._trigger
        self._decided.release()
        if trigger is not None:
            self._complete(trigger)

    def _await_launch(self) -> None:
        if not self._launched:
            with self._decided:
                pass
        if self._error is not None:
            raise self._error

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the proof and for the call; raises what either raises."""
        self._begin_wait()
        self._await_launch()
        return super().wait(timeout)

    def has_ended(self) -> bool:
        """Whether the call has ended, or was refused; asking is no waiting."""
        return self._launched and (self._error is not None or self._inner.is_completed())

    def is_success(self) -> bool:
        """Whether the call has ended well, without waiting."""
        return self._observed(self._launched and self._error is None and self._inner.is_success())

    def exception(self) -> Any:
        """What the call failed with so far, or None, without waiting."""
        if not self._launched:
            return None
        return self._error or self._inner.exception()

    def get_future(self) -> Future[Any]:
        """A future of the call's result, to be had before the call is launched.

        C++ takes an exception that was *set* on a future for a value, so the error is raised inside ``then``.
        """
        with self._guard:
            if self._future is not None:
                return self._future
            self._entry.handed_on()
            self._end_flight()
            trigger: Future[Any] = Future()
            self._future = trigger.then(self._outcome)
            self._trigger = trigger
            launched = self._launched
        if launched:
            self._complete(trigger)
        return self._future

    def _complete(self, trigger: Future[Any]) -> None:
        if self._error is not None:
            self._callbacks.run(partial(trigger.set_result, None))
        else:
            self._inner.get_future().add_done_callback(
                lambda done: self._callbacks.run(partial(trigger.set_result, done))
            )

    def _outcome(self, trigger: Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        inner = trigger.value()
        try:
            value = inner.value()
        except Exception:
            self._entry.finished(State.FAILED)
            raise
        self._entry.finished()
        return value


def _after_launch(name: str) -> Callable[..., Any]:
    def method(self: QueuedWork, *args: Any) -> Any:
        self._await_launch()
        return getattr(super(QueuedWork, self), name)(*args)

    method.__name__ = name
    method.__doc__ = getattr(RecordedWork, name).__doc__
    return method


for _name in (
    "result",
    "source_rank",
    "_source_rank",
    "synchronize",
    "block_current_stream",
    "get_future_result",
    "_get_duration",
    "_get_op_type",
):
    setattr(QueuedWork, _name, _after_launch(_name))
leave_class_uncompiled(RecordedWork)
leave_class_uncompiled(CheckedWork)
leave_class_uncompiled(QueuedWork)
