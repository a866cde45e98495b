"""Decides, for one group, when a call is proved and when it is launched.

In ``record`` every call is launched at once. In ``detail`` a synchronous call is proved and launched in the call
itself; one that says it is asynchronous returns at once, and the group's queue, first in first out on a thread of its
own, proves and launches it. So calls of one group keep their order, and a program that waits for its asynchronous
calls in any order it likes meets no deadlock that it did not have.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch.distributed import Work

from simcoll.capture import Arguments
from simcoll.completions import Completions
from simcoll.errors import MissingRankError
from simcoll.profile import profiled
from simcoll.proof import Prover
from simcoll.record import State
from simcoll.recorder import Entry, GroupLog
from simcoll.source import current_source
from simcoll.spec import Kind, spec_of
from simcoll.streams import CallerStream
from simcoll.work import QueuedWork, RecordedWork

Launch = Callable[[], Work | None]
"""Gives the call to the backend, which does its own checks of the arguments and may refuse."""


@dataclass(slots=True)
class _Queued:
    work: QueuedWork
    entry: Entry
    arguments: Arguments
    launch: Launch
    stream: CallerStream
    gradients: bool
    inference: bool
    end_profile: Callable[[], None] | None


class Conductor:
    """Records, and with a prover proves, the calls of one group on this rank."""

    def __init__(self, log: GroupLog, prover: Prover | None) -> None:
        self._log = log
        self._prover = prover
        # Held while a call takes its place in the group: for all of a synchronous call, so that none slips between.
        self._order = threading.RLock()
        self._queue: deque[_Queued] = deque()
        self._changed = threading.Condition()
        self._pending = 0
        self._completions = Completions(f"simcoll-{log.group.name}-futures")
        self._worker: threading.Thread | None = None
        self._closing = False
        self._pid = os.getpid()

    def conduct(self, arguments: Arguments, launch: Launch) -> Work | None:
        """Record a call, prove it where this group is proved, launch it; returns its Work."""
        proved = self._prover is not None and arguments.spec.kind is not Kind.POINT_TO_POINT
        if proved and arguments.asynchronous:
            return self._enqueue(arguments, launch)
        if not proved:
            entry = self._log.begin(arguments, current_source())
            return self._hand_over(entry, launch)
        with self._order:
            self._drain()
            return self._in_the_call(arguments, launch)

    def _in_the_call(self, arguments: Arguments, launch: Launch) -> Work | None:
        assert self._prover is not None
        entry = self._log.begin(arguments, current_source())
        try:
            self._prover.prove(entry, arguments.timeout)
        except MissingRankError as missing:
            return self._unproved(entry, launch, missing)
        return self._hand_over(entry, launch)

    def _unproved(self, entry: Entry, launch: Launch, missing: MissingRankError) -> Work | None:
        """Some ranks did not come; a backend that names them itself has the last word, and its own wording."""
        try:
            if not spec_of(entry.call).names_absent:
                raise missing
            return self._hand_over(entry, launch)
        except Exception:
            entry.log.recorder.missing(entry, missing)
            raise

    def _hand_over(self, entry: Entry, launch: Launch) -> Work | None:
        """Launch; what the backend does in the call itself has no Work."""
        inner = self._launch(entry, launch)
        if inner is None:
            entry.finished()
            return None
        return RecordedWork(inner, entry)

    def _launch(self, entry: Entry, launch: Launch) -> Work | None:
        entry.started()
        try:
            return launch()
        except Exception as error:
            if spec_of(entry.call).names_absent:
                entry.finished(State.FAILED)
                entry.log.recorder.failed(entry, error)
            else:
                entry.finished(State.REJECTED)
                entry.log.recorder.rejected(entry, error)
            raise

    def _enqueue(self, arguments: Arguments, launch: Launch) -> Work:
        with self._order:
            entry = self._log.begin(arguments, current_source())
            work = QueuedWork(entry, self._completions)
            item = _Queued(
                work,
                entry,
                arguments,
                launch,
                CallerStream.of(arguments.tensors),
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                self._profiled(arguments),
            )
            with self._changed:
                self._start_worker()
                self._queue.append(item)
                self._pending += 1
                self._changed.notify_all()
        return work

    def _start_worker(self) -> None:
        """Start the queue's thread with the first asynchronous call; threads do not survive a fork."""
        self._closing = False
        if self._worker is None or not self._worker.is_alive() or self._pid != os.getpid():
            self._pid = os.getpid()
            self._worker = threading.Thread(target=self._work, name=f"simcoll-{self._log.group.name}", daemon=True)
            self._worker.start()

    def _drain(self) -> None:
        """Wait until every queued call is launched or refused."""
        if self._pending:
            with self._changed:
                self._changed.wait_for(lambda: self._pending == 0)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                item = self._queue.popleft()
            self._settle(item)
            # The worker keeps no tensor alive while it waits.
            del item

    def _settle(self, item: _Queued) -> None:
        assert self._prover is not None
        inner: Work | None = None
        failure: Exception | None = None
        try:
            self._prover.prove(item.entry, item.arguments.timeout)
            with _as_called(item):
                inner = self._launch(item.entry, item.launch)
        except MissingRankError as error:
            item.entry.log.recorder.missing(item.entry, error)
            failure = error
        except Exception as error:
            failure = error
        self._finish(item, inner, failure)
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def _finish(self, item: _Queued, inner: Work | None, failure: Exception | None) -> None:
        item.work.settle(inner, failure)
        if item.end_profile is not None:
            end = item.end_profile
            try:
                if inner is not None:
                    inner.get_future().add_done_callback(lambda done: end())
                else:
                    end()
            except RuntimeError:
                # A backend without futures: the event ends with the launch.
                end()

    def _profiled(self, arguments: Arguments) -> Callable[[], None] | None:
        devices = (tensor.device.type for tensors in arguments.tensors.values() for tensor in tensors)
        return profiled(arguments, self._log.backend(next(devices, "cpu")))

    def close(self, seconds: float) -> None:
        """Let the queue finish what it can within ``seconds``, then let the side channel go."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._pending == 0, seconds)
        if self._prover is not None:
            self._prover.close()


def _as_called(item: _Queued) -> AbstractContextManager[object]:
    """The caller's gradient mode and stream, in the worker's thread."""
    stack = ExitStack()
    stack.enter_context(torch.inference_mode() if item.inference else nullcontext())
    stack.enter_context(torch.set_grad_enabled(item.gradients))
    stack.enter_context(item.stream)
    return stack
