"""The ``Work`` that a recorded group returns: it tells the black box when the call ended.

torch's C++ sees only ``wait`` and ``get_future`` of a Work written in Python; Python callers see everything.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from torch.distributed import Work
from torch.futures import Future

from simcoll.backends.base import Backend
from simcoll.core.record import State
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import DeviceTimed, Entry
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.values.tensors import CallValues
from simcoll.wrapper.async_checks import Flight, flights
from simcoll.wrapper.backward_end import note_at_end_of_backward

NO_TIMEOUT = timedelta(0)
"""The timeout of a wait that names none: the backend's own holds."""

LOOK_UP = timedelta(seconds=0.5)
"""The time after which a wait looks up whether a mismatch was found meanwhile."""

_LOOK_ON_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.0001
_LONGEST_PAUSE_SECONDS = 0.01
_MISMATCH_SECONDS = 5.0
"""The time a wait that failed waits for ranks that are about to find out why."""


class Noted(Protocol):
    """The record of a call: an :class:`~simcoll.recorder.recorder.Entry`, or several that run as one."""

    @property
    def call(self) -> Call:
        """The call that the rank made."""
        ...

    @property
    def timed(self) -> DeviceTimed | None:
        """The device's timing of the call, where the host does not see its end."""
        ...

    @property
    def values(self) -> CallValues | None:
        """The values of the call, where they are checked."""
        ...

    def awaited(self) -> None:
        """Note that a thread begins to wait for it."""
        ...

    def handed_on(self) -> None:
        """Its future was taken."""
        ...

    def held_up(self) -> None:
        """Note that the rank begins to wait for its future."""
        ...

    def finished(self, state: State = State.COMPLETED) -> None:
        """It ended, as far as the host sees."""
        ...

    def waited_for(self) -> None:
        """Note that a thread has waited for it, and that it ended well."""
        ...

    def failed(self, error: Exception) -> None:
        """It ended with an exception."""
        ...

    def lacked(self, missing: MissingRankError) -> None:
        """Ranks did not come to it."""
        ...

    def received_from(self, group_rank: int) -> None:
        """It took a message of this group rank."""
        ...


class RecordedWork(Work):
    """A call that the backend has been given; everything is the backend's own Work, but for the note of its end."""

    def __init__(
        self, inner: Work, entry: Noted, flight: Flight | None = None, check: Callable[[], None] | None = None
    ) -> None:
        """``check`` is called once, when the call is done, and may raise."""
        super().__init__()
        self._inner = inner
        self._entry = entry
        self._check = check
        self._flight = flight
        self._landing: Flight | None = None
        if flight is not None:
            flight.follow(self)

    def go_on(self, inner: Work, entry: Entry, flight: Flight | None, landing: Flight | None) -> None:
        """Begin with what another class has left of it; ``landing`` is its flight if a wait has begun."""
        self._inner = inner
        self._entry = entry
        self._check = None
        self._flight = flight
        self._landing = landing
        if flight is not None:
            flight.follow(self)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The interpreter's end takes away this module's names.
        if (flight := getattr(self, "_flight", None)) is not None and not is_finalizing():
            flight.dropped()

    def tell_when_waited(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called once, when the call has been waited for."""
        self._check = tell

    def has_ended(self) -> bool:
        """True if the backend says that the call has ended; asking is no waiting."""
        return self._inner.is_completed()

    def _begin_wait(self) -> None:
        self._entry.awaited()
        if (flight := self._flight) is not None:
            flight.awaited()
            self._landing, self._flight = flight, None

    def _look_in(self) -> None:
        """Begin a wait that may give up: the call is in flight until one has seen its end."""
        self._entry.awaited()
        if self._flight is not None:
            self._flight.looked_at()
            self._landing = self._flight

    def _land(self) -> None:
        """Note that the program has seen the call's end."""
        landing, self._landing = self._landing, None
        if landing is not None:
            landing.arrived()
        if self._flight is not None:
            self._end_flight()

    def _end_flight(self) -> None:
        if self._flight is not None:
            self._flight.end()
            self._flight = None

    def _observed(self, ended: bool) -> bool:
        """Note the end where the program has seen it: it need not wait for it any more."""
        if ended:
            if self._entry.values is not None:
                self._entry.values.ended()
            self._look_in()
            self._land()
            flights.here.waits += 1
        return ended

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait as the backend's Work does; raises what it raises, or a mismatch that was found meanwhile.

        A wait with a time limit that gives up is no end of the call, which goes on, and may be waited for again.
        """
        PENDING_ERRORS.raise_due()
        if timeout > NO_TIMEOUT:
            self._look_in()
        else:
            self._begin_wait()
        return self._wait_on(timeout)

    def _wait_on(self, timeout: timedelta) -> bool:
        """Wait, where it is noted that a wait has begun."""
        try:
            done = self._await(timeout)
        except Exception as error:
            self._note_error(error, timeout)
            raise
        self._land()
        self._ended()
        flights.here.waits += 1
        return done

    def wait_failed(self, error: Exception) -> bool:
        """A wait without a time limit has begun on the quick way, and raised ``error``; what is to be done about it."""
        self._note_error(error, NO_TIMEOUT)
        raise error

    def _note_error(self, error: Exception, timeout: timedelta) -> None:
        if isinstance(error, MissingRankError):
            self._entry.lacked(error)
            if timeout <= NO_TIMEOUT:
                self._entry.finished(State.FAILED)
        elif isinstance(error, CollectiveMismatchError):
            # Mostly raised on the way, in place of a longer wait: the call itself goes on.
            if getattr(self._inner, "ended_with", None) is error:
                self._disagreed()
        elif timeout <= NO_TIMEOUT or self._inner.is_completed():
            self._entry.failed(error)

    def _disagreed(self) -> None:
        """Write down that the backend itself has ended it, because the ranks disagree."""
        self._note_source()
        self._entry.finished(State.FAILED)

    def _note_source(self) -> None:
        """Note the source of a receive from any source, which is known only once it has ended."""
        if self._entry.call.peer == ANY_SOURCE:
            with contextlib.suppress(RuntimeError):
                self._entry.received_from(self._inner._source_rank())

    def _ended(self) -> None:
        """Write down that it ended well."""
        self._note_source()
        if (check := self._check) is not None:
            self._check = None
            try:
                check()
            except CollectiveMismatchError:
                self._entry.finished(State.FAILED)
                raise
        self._entry.waited_for()

    def _await(self, timeout: timedelta) -> bool:
        return self._inner.wait(timeout) if timeout > NO_TIMEOUT else self._inner.wait()

    def get_future(self) -> Future[Any]:
        """The backend's future, whose completion is noted too."""
        self._entry.handed_on()
        self._end_flight()
        if self._entry.timed is None:
            note_at_end_of_backward(self._entry)
        future = self._inner.get_future()
        if self._entry.values is not None:
            # A waiter for the future gets the result when it has been looked at.
            return future.then(self._looked_at)
        # Where a device times the call, a future is complete as soon as the call is queued; and for a callback CUDA's
        # would mark the results as used on another stream, which keeps their memory longer.
        if self._entry.timed is None:
            future.add_done_callback(lambda done: self._entry.finished())
        return future

    def _looked_at(self, done: Future[Any]) -> Any:
        value = done.value()
        self._entry.finished()
        return value

    def is_completed(self) -> bool:
        """True if the call has ended, without waiting."""
        return self._observed(self.has_ended())

    def is_success(self) -> bool:
        """True if the call has ended well, without waiting."""
        return self._observed(self._inner.is_success())

    def exception(self) -> Any:
        """Returns the error with which the call failed, or None."""
        return self._inner.exception()

    def result(self) -> Any:
        """The tensors that the call produced."""
        # Gloo raises where the call has not ended; a result shows that it has.
        result = self._inner.result()
        self._begin_wait()
        if self._entry.values is not None:
            # From here on the program may write to it.
            self._entry.values.ended()
        self._land()
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
        self._land()
        self._queued_behind()
        self._look_behind()

    def block_current_stream(self) -> None:
        """Make the current stream wait without blocking the host."""
        self._begin_wait()
        self._landing = None  # nobody sees the end
        self._inner.block_current_stream()
        self._queued_behind()
        self._look_behind()

    def _look_behind(self) -> None:
        """Look at the result, which the program may alter from here on: where the stream waits, or the call has ended.
        What else has neither wait nor end is looked at by the wait that follows.
        """
        if self._entry.values is not None and (self._entry.timed is not None or self._inner.is_completed()):
            self._entry.values.ended()

    def _queued_behind(self) -> None:
        """Note that later work on this thread's stream runs after the call."""
        if self._entry.timed is not None:
            self._entry.timed.awaited()

    def get_future_result(self) -> Future[Any]:
        """The future of the call's WorkResult."""
        return self._inner.get_future_result()  # type: ignore[attr-defined,no-any-return]

    def _get_duration(self) -> float:
        return self._inner._get_duration()  # type: ignore[attr-defined,no-any-return]

    def _get_op_type(self) -> Any:
        return self._inner._get_op_type()  # type: ignore[attr-defined]

    def _get_sequence_number(self) -> int:
        return self._inner._get_sequence_number()  # type: ignore[attr-defined,no-any-return]

    @property
    def timeout(self) -> timedelta:
        """The time limit of the call (torch 2.15)."""
        return self._inner.timeout  # type: ignore[attr-defined,no-any-return]


class CheckedWork(RecordedWork):
    """A call that is proved in the background: a wait for it raises a mismatch that was found meanwhile.

    ``backend`` says how it waits, None that a wait must not look up; ``failed`` is called when a wait for it fails.
    """

    def __init__(
        self,
        inner: Work,
        entry: Entry,
        flight: Flight | None = None,
        backend: Backend | None = None,
        *,
        failed: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(inner, entry, flight)
        self._backend = backend
        self._tell_failed = failed

    def _wait_on(self, timeout: timedelta) -> bool:
        """Wait as the backend's Work does; raises what it raises, or the mismatch for which it did not complete."""
        try:
            return super()._wait_on(timeout)
        except CollectiveMismatchError:
            raise
        except Exception as error:
            if self._tell_failed is not None:
                self._tell_failed()
            raise_mismatch_behind(error)
            raise

    def go_on(self, inner: Work, entry: Entry, flight: Flight | None, landing: Flight | None) -> None:
        """Begin with what another class has left of it."""
        super().go_on(inner, entry, flight, landing)
        self._backend = entry.log.backend("cpu")
        self._tell_failed = None

    def wait_failed(self, error: Exception) -> bool:
        """A wait has begun on the quick way, where it may only have been given up for a look: go on with it."""
        if looks_up(self._backend) and isinstance(error, RuntimeError):
            if not self._inner.is_completed():
                PENDING_ERRORS.raise_due()
            return self._wait_on(NO_TIMEOUT)
        self._note_error(error, NO_TIMEOUT)
        if not isinstance(error, CollectiveMismatchError):
            raise_mismatch_behind(error)
        raise error

    def _await(self, timeout: timedelta) -> bool:
        return super()._await(timeout) if timeout > NO_TIMEOUT else wait_looking_up(self._inner, self._backend)


def looks_up(backend: Backend | None) -> bool:
    """True if a wait for a call is tried for a moment, again and again."""
    return backend is not None and backend.waits_on_host and backend.resumes


def wait_looking_up(inner: Work, backend: Backend | None) -> bool:
    """Wait for a call that may never end, as ranks may disagree about it: raises a mismatch that is found meanwhile."""
    if backend is None or not backend.waits_on_host:
        return inner.wait()
    if not backend.resumes:
        _look_on(inner)
        return inner.wait()
    while True:
        try:
            return inner.wait(LOOK_UP)
        except RuntimeError:
            if inner.is_completed():
                return inner.wait()
        PENDING_ERRORS.raise_due()


def _look_on(inner: Work) -> None:
    """Ask until the call has ended, where no wait can be tried for a moment; at last the wait itself knows when its
    time is up.
    """
    deadline, pause = time.monotonic() + _LOOK_ON_SECONDS, _FIRST_PAUSE_SECONDS
    while time.monotonic() < deadline and not inner.is_completed():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        PENDING_ERRORS.raise_due()


def raise_mismatch_behind(error: Exception) -> None:
    """Raise the mismatch for which a wait failed with ``error``, where there is one: the first rank that raises a
    mismatch may end, and its peers lose the connection before they know why.
    """
    if (mismatch := PENDING_ERRORS.awaited(_MISMATCH_SECONDS)) is not None:
        raise mismatch from error


leave_class_uncompiled(RecordedWork)
leave_class_uncompiled(CheckedWork)
