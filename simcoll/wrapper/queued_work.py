"""The ``Work`` of a call that its group's queue proves and launches later: ``detail`` mode, asynchronous calls.

Daemon threads launch the calls of a group in order.

:func:`as_called` makes a call that another thread launches behave as if the thread that made it had launched it.

:func:`profiled` keeps queued calls in the user's profile. The profiler watches threads, and a queued call is launched
from another thread than the one that made it. So the events that the dispatcher and the backend would have recorded are
recorded for it: under the same names, with the same input shapes, the dispatcher's for the moment of the call, the
backend's from the call to its end.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch._C._autograd import _record_function_with_args_enter, _record_function_with_args_exit
from torch.distributed import Work
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from simcoll.backends.base import Backend
from simcoll.core.record import State
from simcoll.cuda.launch_order import LOOK_UP_SECONDS, CallerStream
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Entry
from simcoll.wrapper.async_checks import Flight
from simcoll.wrapper.backward_end import note_at_end_of_backward
from simcoll.wrapper.work import NO_TIMEOUT, RecordedWork

_Work = Callable[[], object]

_SHORTEST = timedelta(milliseconds=1)
_GAVE_UP = "Operation timed out!"
"""The text of a Work's wait with a time limit that gives up (c10d/Work.cpp)."""


class WorkerThreads:
    """``count`` threads that take work from one queue; they belong to the process that gave the work."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = name
        self._count = count
        self._queue: SimpleQueue[_Work | None] | None = None
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def run(self, work: _Work) -> None:
        """Have ``work`` called soon; with one thread, after all that was given before."""
        with self._guard:
            # Threads do not survive a fork; their work is the parent's.
            if self._queue is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._queue = SimpleQueue()
                for _ in range(self._count):
                    threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True).start()
            self._queue.put(work)

    def close(self) -> None:
        """End the threads once they have done their work; later work starts new ones."""
        with self._guard:
            if self._queue is not None and self._pid == os.getpid():
                for _ in range(self._count):
                    self._queue.put(None)
            self._queue = None


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    # The work is held by nothing while the thread waits for the next: it may keep tensors alive.
    while (work := queue.get()) is not None:
        try:
            work()
        except Exception:
            kind, error, traceback = sys.exc_info()
            assert kind is not None
            threading.excepthook(threading.ExceptHookArgs((kind, error, traceback, threading.current_thread())))
            del error, traceback
        del work


_DISPATCHED_AS = {
    "barrier": "barrier",
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "all_to_all_single": "alltoall_base_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
}
"""The dispatcher's names of c10d methods; the others' are the method's with an underscore after it."""


def profiled(arguments: Arguments, backend: Backend | None) -> Callable[[], None] | None:
    """Begin a call's events in this thread's profile; returns a function that ends them, None without a profiler."""
    if not torch.autograd._profiler_enabled():
        return None
    tensors = [tensor for role, group in arguments.tensors.items() if role != "outputs" for tensor in group]
    method = arguments.method.name
    dispatched = _record_function_with_args_enter(f"c10d::{_DISPATCHED_AS.get(method, method + '_')}", *tensors)
    _record_function_with_args_exit(dispatched)
    if backend is None:
        return None
    of_row = backend.profiled_as.get(arguments.spec.name, arguments.spec.profiling[0])
    name = f"{backend.name}:{backend.profiled_as.get(method, of_row)}"
    return partial(_record_function_with_args_exit, _record_function_with_args_enter(name, *tensors))


T = TypeVar("T")

_NOTHING = nullcontext()


def as_called(arguments: Arguments, backend: Backend | None) -> Callable[[Callable[[], T]], T]:
    """Returns a caller of launches for any thread, with this one's gradient, inference, dispatch modes and streams."""
    stream = CallerStream.of(arguments, backend)
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    modes = _get_current_dispatch_mode_stack()

    def launched(launch: Callable[[], T]) -> T:
        with (
            torch.inference_mode() if inference else _NOTHING,
            torch.set_grad_enabled(gradients),
            stream,
            _dispatched_to(modes) if modes else _NOTHING,
        ):
            work = launch()
            stream.launched(work)
            return work

    return launched


@contextmanager
def _dispatched_to(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    """The dispatch modes in force, without entering them: many start over when they are entered."""
    for mode in modes:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()


class QueuedWork(RecordedWork):
    """A call that is proved, then launched, by the group's queue; everything waits for that first."""

    def __init__(
        self, entry: Entry, callbacks: WorkerThreads, flight: Flight | None = None, device: torch.device | None = None
    ) -> None:
        """``device`` is the one that the call runs on, if it is known."""
        super().__init__(Work(), entry, flight)
        self._device = None if device is None or device.type == "cpu" else device
        # Neither the queue's thread nor a backend's own may run what users attach to a future: a callback may make
        # calls of its own and wait for them, and Gloo's barrier waits for every call before it, its own included.
        self._callbacks = callbacks
        self._decided = threading.Lock()
        self._decided.acquire()
        self._error: Exception | None = None
        self._no_future: Exception | None = None
        self._launched = False
        self._future: Future[Any] | None = None
        self._trigger: Future[Any] | None = None
        self._guard = threading.Lock()

    def settle(self, inner: Work | None, error: Exception | None) -> None:
        """Called once, by the queue, with the backend's Work, or the error for which the call was not launched."""
        with self._guard:
            if inner is not None:
                self._inner = inner
            self._error = error
            self._launched = True
            trigger = self._trigger
        self._decided.release()
        if trigger is not None:
            self._complete(trigger)

    def _await_launch(self, seconds: float = math.inf) -> None:
        """Return when the call is launched; raises the error that prevented it, or a timeout after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self._launched:
            # A mismatched message may be the reason why the others do not come.
            if self._decided.acquire(timeout=min(LOOK_UP_SECONDS, max(0.0, deadline - time.monotonic()))):
                self._decided.release()
                break
            PENDING_ERRORS.raise_due()
            if time.monotonic() >= deadline:
                raise RuntimeError(_GAVE_UP)
        if self._error is not None:
            raise self._error

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the proof and for the call, together no longer than ``timeout``; raises what either raises."""
        PENDING_ERRORS.raise_due()
        if timeout <= NO_TIMEOUT:
            self._begin_wait()
            self._await_launch()
            return super().wait()
        until = time.monotonic() + timeout.total_seconds()
        self._look_in()
        self._await_launch(timeout.total_seconds())
        return super().wait(max(timedelta(seconds=until - time.monotonic()), _SHORTEST))

    def has_ended(self) -> bool:
        """True if the call has ended, or was refused; asking is no waiting."""
        return self._launched and (self._error is not None or self._inner.is_completed())

    def is_success(self) -> bool:
        """True if the call has ended well, without waiting."""
        return self._observed(self._launched and self._error is None and self._inner.is_success())

    def exception(self) -> Any:
        """Returns the error with which the call has failed so far, or None, without waiting."""
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
            if self._entry.timed is None:
                note_at_end_of_backward(self._entry)
            # A future gives tensors on a GPU only to callers that have named it.
            trigger: Future[Any] = Future() if self._device is None else Future(devices=[self._device])
            self._future = trigger.then(self._outcome)
            self._trigger = trigger
            launched = self._launched
        if launched:
            self._complete(trigger)
        return self._future

    def _complete(self, trigger: Future[Any]) -> None:
        if self._error is None and self._device is None:
            try:
                inner = self._inner.get_future()
            except Exception as error:
                # A backend without futures; a thread that waits for this one must be told.
                self._no_future = error
            else:
                inner.add_done_callback(lambda done: self._callbacks.run(partial(trigger.set_result, done)))
                return
        self._callbacks.run(partial(trigger.set_result, None))

    def _outcome(self, trigger: Future[Any]) -> Any:
        if (error := self._error or self._no_future) is not None:
            raise error
        if self._device is not None:
            # Complete at once: this thread's stream waits for the call, and a reader of the future made of it for its
            # value waits for this stream.
            found = self._inner.get_future().wait()
            if self._entry.values is not None:
                self._entry.values.ended()
            return found
        inner = trigger.value()
        try:
            value = inner.value()
        except Exception:
            self._entry.finished(State.FAILED)
            raise
        self._entry.finished()
        return value

    @property
    def timeout(self) -> timedelta:
        """The time limit of the call (torch 2.15), once it is launched."""
        self._await_launch()
        return super().timeout


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
    "_get_sequence_number",
):
    setattr(QueuedWork, _name, _after_launch(_name))
leave_class_uncompiled(QueuedWork)
