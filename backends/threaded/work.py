"""The ``Work`` of a call between ranks of one process, and its futures.

Where ranks take turns, a wait in C++ keeps the turn of its rank, so that it could never end. A future is therefore
returned completed wherever possible: the other ranks go on first. A future that is still not complete waits in Python,
as the Work does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
from torch.distributed import Work
from torch.futures import Future

from simcoll.backends.engine.parking import WaitTimeoutError
from simcoll.backends.engine.tensor_data import TensorData
from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.engine.turns import Turns
from simcoll.backends.engine.world import World
from simcoll.core.rank_local import acting_as, acting_rank
from simcoll.core.source_roots import simcoll_folders
from simcoll.errors import MissingRankError
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.verifier.findings.error_text import missing_text

_NO_TIMEOUT = timedelta(0)
_ROUNDS = 1000
"""The number of turns given to other ranks before the future of an incomplete call is returned."""

_BACKWARD = "_engine_run_backward"
"""torch's function that passes futures on to DistributedDataParallel's reducer, which waits for them in C++."""

Waiting = Callable[[], AbstractContextManager[object]]


class ThreadedWork(Work):
    """The Work of one call. ``results`` are the tensors that it fills, ``timeout`` that of a wait (seconds).

    Every wait of this rank runs within ``waiting()``.
    """

    def __init__(
        self,
        world: World,
        ticket: Ticket,
        results: Sequence[torch.Tensor],
        timeout: float | None,
        waiting: Waiting = nullcontext,
    ) -> None:
        super().__init__()
        self._world = world
        self._ticket = ticket
        self._results = results
        self._timeout = timeout
        self._waiting = waiting

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the end of the call; raises its error."""
        if timeout > _NO_TIMEOUT:
            self._wait_for(timeout.total_seconds(), goes_on=True)
        else:
            self._wait_to_the_end()
        return True

    def is_completed(self) -> bool:
        """True if the call has ended; lets other ranks go on."""
        with self._waiting():
            return self._world.has_ended(self._ticket)

    def is_success(self) -> bool:
        """True if the call has ended well."""
        return self.is_completed() and self._ticket.error is None

    def before_it_runs(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` just before the call runs, unless it has run."""
        if isinstance(self._ticket.data, TensorData):
            self._ticket.data.about_to_run = callback

    @property
    def ended_with(self) -> BaseException | None:
        """The error of the call, or None."""
        return self._ticket.error

    def exception(self) -> Any:
        """The error of the call, or None."""
        return self._ticket.error

    def result(self) -> list[torch.Tensor]:
        """The tensors that the call fills."""
        return list(self._results)

    def synchronize(self) -> None:
        """Wait for the call: there is no stream to wait on."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the call: there is no stream to wait on."""
        self.wait()

    def source_rank(self) -> int:
        """The group rank that a receive got its message from."""
        return self._ticket.source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """A future of the call's results."""
        if not isinstance(self._world.threads, Turns):
            return self._future_of_free_threads()
        if _goes_to_cpp(sys._getframe(1)):
            self._wait_to_the_end()
        else:
            self._let_others_go_on()
        return _completed_future(self.value) if self._ticket.done else PendingFuture(self)

    def value(self) -> list[torch.Tensor]:
        """The results of a call that has ended; raises its error."""
        if self._ticket.error is not None:
            raise self._ticket.error
        return list(self._results)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` for this rank when the call ends, in the thread that ends it."""
        rank = acting_rank()

        def call_back(ticket: Ticket) -> None:
            with acting_as(rank):
                callback()

        self._world.when_done(self._ticket, call_back)

    def _future_of_free_threads(self) -> Future[Any]:
        trigger: Future[None] = Future()
        future = trigger.then(lambda done: self.value())
        self._world.when_done(self._ticket, lambda ticket: trigger.set_result(None))
        return future

    def _wait_to_the_end(self) -> None:
        self._wait_for(self._timeout)

    def _wait_for(self, seconds: float | None, *, goes_on: bool = False) -> None:
        try:
            with self._waiting():
                self._world.wait(self._ticket, seconds, goes_on=goes_on)
        except WaitTimeoutError as late:
            raise _timed_out(self._ticket, late, round((seconds or 0) * 1000)) from late

    def _let_others_go_on(self) -> None:
        with self._waiting():
            for _ in range(_ROUNDS):
                if self._ticket.done or not self._world.threads.yield_turn(self._ticket.global_rank):
                    break


def _completed_future(value: Callable[[], list[torch.Tensor]]) -> Future[Any]:
    """A completed future, for C++ too.

    C++ takes an exception that was *set* on a future for a value, so the error is raised inside ``then``.
    """
    trigger: Future[None] = Future()
    trigger.set_result(None)
    return trigger.then(lambda done: value())


def _timed_out(ticket: Ticket, late: WaitTimeoutError, milliseconds: int) -> RuntimeError:
    """The error of a wait that timed out: it names the ranks that are missing in a collective, as a proof does."""
    group = ticket.group
    absent = [place for rank in late.absent if (place := group.place(rank)) is not None]
    if not absent:
        return RuntimeError(f"Timed out waiting {milliseconds}ms for {ticket.call.op} operation to complete: {late}")
    text = missing_text(group, ticket.rank, absent, milliseconds, ticket.record(), waited_ms=milliseconds)
    return MissingRankError(text, late.absent, milliseconds)


class PendingFuture(Future[Any]):
    """The future of a call that is not complete although other ranks went on."""

    def __init__(self, work: ThreadedWork) -> None:
        super().__init__()
        self._work = work

    def done(self) -> bool:
        """True if the call has ended."""
        return self._work.is_completed()

    def wait(self) -> Any:
        """Wait as the Work does, and return its results."""
        self._work.wait()
        return self._work.value()

    def value(self) -> Any:
        """The results of a call that has ended."""
        return self._work.value()

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        """The future of ``callback``; waits for the results first, since the returned future is waited for in C++."""
        self._work._wait_to_the_end()
        return _completed_future(self._work.value).then(callback)

    def add_done_callback(self, callback: Callable[[Future[Any]], None]) -> None:
        """Call ``callback`` when the call has ended."""
        self._work.when_done(lambda: callback(self))


class CoalescedWork(Work):
    """The Work of a coalesced section: its calls are waited for together."""

    def __init__(self, works: Sequence[ThreadedWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for all calls."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """True if all calls have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """True if all calls have ended well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        """The error of the first call that failed, or None."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors that the calls fill."""
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        """Wait for the calls: there is no stream to wait on."""
        self.wait()

    def get_future(self) -> Future[Any]:
        """A future of all results, returned when the calls have ended."""
        self.wait()
        return _completed_future(self.result)


def _goes_to_cpp(frame: FrameType | None) -> bool:
    """True if C++ asks for the future, or a hook of DistributedDataParallel, which passes it to C++."""
    while frame is not None and frame.f_code.co_filename.startswith(simcoll_folders()):
        frame = frame.f_back
    if frame is None or "get_future" not in frame.f_code.co_names:
        return True
    while frame is not None:
        if frame.f_code.co_name == _BACKWARD:
            return True
        frame = frame.f_back
    return False


leave_class_uncompiled(ThreadedWork)
leave_class_uncompiled(CoalescedWork)
leave_class_uncompiled(PendingFuture)
