"""The ``Work`` of a call that ranks of one process make to each other, and its futures.

Where ranks take turns, whoever waits in C++ waits with the turn of its rank, so that nobody could end that wait. So a
future is handed out ended wherever it can be: the other ranks go on first. One that still has not ended then waits, in
Python, as the Work does.
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

from simcoll.backends.engine.parking import LateError
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
"""So often the other ranks go on before a future is handed out that has not ended."""

_BACKWARD = "_engine_run_backward"
"""torch's function below which a future goes to DistributedDataParallel's reducer, which waits for it in C++."""

Waiting = Callable[[], AbstractContextManager[object]]


class ThreadedWork(Work):
    """One posted call. ``results`` are the tensors that it fills, ``timeout`` how long a wait lasts (seconds).

    ``waiting`` surrounds every wait of this rank.
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
        """Wait for the end of the call; raises what it ended with."""
        self._wait_for(timeout.total_seconds() if timeout > _NO_TIMEOUT else self._timeout)
        return True

    def is_completed(self) -> bool:
        """Whether the call has ended; the other ranks go on meanwhile."""
        with self._waiting():
            return self._world.has_ended(self._ticket)

    def is_success(self) -> bool:
        """Whether the call has ended well."""
        return self.is_completed() and self._ticket.error is None

    def before_it_runs(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the other ranks have come, unless they have already."""
        if isinstance(self._ticket.data, TensorData):
            self._ticket.data.about_to_run = callback

    @property
    def ended_with(self) -> BaseException | None:
        """What the call ended with, or None."""
        return self._ticket.error

    def exception(self) -> Any:
        """What the call ended with, or None."""
        return self._ticket.error

    def result(self) -> list[torch.Tensor]:
        """The tensors that the call fills."""
        return list(self._results)

    def synchronize(self) -> None:
        """There is no stream to wait on: wait for the call."""
        self.wait()

    def block_current_stream(self) -> None:
        """There is no stream to wait on: wait for the call."""
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
        return _ended_future(self.value) if self._ticket.done else PendingFuture(self)

    def value(self) -> list[torch.Tensor]:
        """The results of a call that has ended; raises what it ended with."""
        if self._ticket.error is not None:
            raise self._ticket.error
        return list(self._results)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` for this rank when the call has ended, in whichever thread ends it."""
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

    def _wait_for(self, seconds: float | None) -> None:
        try:
            with self._waiting():
                self._world.wait(self._ticket, seconds)
        except LateError as late:
            raise _timed_out(self._ticket, late, round((seconds or 0) * 1000)) from late

    def _let_others_go_on(self) -> None:
        with self._waiting():
            for _ in range(_ROUNDS):
                if self._ticket.done or not self._world.threads.give_way(self._ticket.global_rank):
                    break


def _ended_future(value: Callable[[], list[torch.Tensor]]) -> Future[Any]:
    """A future that has ended, as C++ sees it too.

    C++ takes an exception that was *set* on a future for a value, so the error is raised inside ``then``.
    """
    trigger: Future[None] = Future()
    trigger.set_result(None)
    return trigger.then(lambda done: value())


def _timed_out(ticket: Ticket, late: LateError, milliseconds: int) -> RuntimeError:
    """The error of a wait whose time is over: it names who did not come to a collective, as a proof does."""
    group = ticket.group
    absent = [place for rank in late.absent if (place := group.place(rank)) is not None]
    if not absent:
        return RuntimeError(f"Timed out waiting {milliseconds}ms for {ticket.call.op} operation to complete: {late}")
    text = missing_text(group, ticket.rank, absent, milliseconds, ticket.record(), waited_ms=milliseconds)
    return MissingRankError(text, late.absent, milliseconds)


class PendingFuture(Future[Any]):
    """A future of a call that the other ranks have not come to though they went on."""

    def __init__(self, work: ThreadedWork) -> None:
        super().__init__()
        self._work = work

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._work.is_completed()

    def wait(self) -> Any:
        """Wait as the Work does, and give its results."""
        self._work.wait()
        return self._work.value()

    def value(self) -> Any:
        """The results of a call that has ended."""
        return self._work.value()

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        """What ``callback`` makes of the results; waits for them, because what is handed out is waited for in C++."""
        self._work._wait_to_the_end()
        return _ended_future(self._work.value).then(callback)

    def add_done_callback(self, callback: Callable[[Future[Any]], None]) -> None:
        """Call ``callback`` when the call has ended."""
        self._work.when_done(lambda: callback(self))


class Together(Work):
    """What was launched between the beginning and the end of a coalesced section: it is waited for as one."""

    def __init__(self, works: Sequence[ThreadedWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for all of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        """What the first that failed ended with, or None."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors that they fill."""
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        """There is no stream to wait on: wait for them."""
        self.wait()

    def get_future(self) -> Future[Any]:
        """A future of all results; it is handed out when they have ended."""
        self.wait()
        return _ended_future(self.result)


def _goes_to_cpp(frame: FrameType | None) -> bool:
    """Whether C++ asks for the future, or a hook of DistributedDataParallel does, which hands it to C++."""
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
leave_class_uncompiled(Together)
leave_class_uncompiled(PendingFuture)
