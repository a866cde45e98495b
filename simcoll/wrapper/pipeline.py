"""Decides, for one group, when a call is proved and when it is launched.

In ``record`` every call is launched at once; in ``check`` too, and is then handed to the background. In ``detail`` the
calls of a group stand in one line, in the order in which they were made, and are proved and launched one at a time: a
synchronous call in the thread that makes it, one that says it is asynchronous, which returns at once, on a thread of
the group's own. So calls of one group keep their order, and a program that waits for its asynchronous calls in any
order it likes meets no deadlock that it did not have.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any

from torch.distributed import Work

from simcoll.core.record import State
from simcoll.cuda.coalesced import Section
from simcoll.cuda.graph_replay import CapturedCall, GroupReplay
from simcoll.cuda.launch_order import Turn
from simcoll.cuda.watcher import DeviceTimes
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.proof.check_rounds import Made
from simcoll.proof.checker import Checker, MessageChecker
from simcoll.proof.p2p_channel import Posted
from simcoll.proof.p2p_detail import Messages
from simcoll.proof.prover import Prover
from simcoll.proof.queue import ProofQueue
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Entry, GroupLog
from simcoll.recorder.source import current_source, made_by_torch
from simcoll.spec.table import Kind, spec_of
from simcoll.wrapper.async_checks import Flight, flights, watches
from simcoll.wrapper.ddp import take_claim
from simcoll.wrapper.queued_work import QueuedWork, as_called, profiled
from simcoll.wrapper.work import CheckedWork, RecordedWork
from simcoll.wrapper.worker_threads import WorkerThreads

Launch = Callable[[], Work | None]
"""Gives the call to the backend, which does its own checks of the arguments and may refuse."""

_FUTURE_THREADS = 2
"""As many as a Gloo group has: the callback of one future may wait for what another completes."""


class Pipeline:
    """Records the calls of one group on this rank; with a prover proves them first, with a checker afterwards."""

    def __init__(
        self,
        log: GroupLog,
        prover: Prover | None = None,
        messages: Messages | None = None,
        checker: Checker[Made] | None = None,
        post: MessageChecker | None = None,
        times: DeviceTimes | None = None,
    ) -> None:
        """``times`` tell of calls that a backend queues on a device, if the group has such a backend."""
        self._log = log
        self._times = times
        self._section: Section | None = None
        self._prover = prover
        self._messages = messages
        self._checker = checker
        self._post = post
        self._checkers: list[Checker[Any]] = [one for one in (checker, post) if one is not None]
        for one in self._checkers:
            # A group that is merely dropped leaves no thread behind.
            weakref.finalize(self, one.abandon).atexit = False
        self._pid = os.getpid()
        self._line = ProofQueue()
        self._closed = False
        self._unfit: CollectiveMismatchError | None = None
        self._given_up = False
        self._queue = WorkerThreads(f"simcoll-{log.group.name}")
        self._futures = WorkerThreads(f"simcoll-{log.group.name}-futures", _FUTURE_THREADS)

    @property
    def log(self) -> GroupLog:
        """Where the group's calls are written down."""
        return self._log

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Record a call, prove it where this group is proved, launch it; returns its Work.

        What is launched while c10d is ``coalescing`` is launched by its thread, and waited for all at once.
        """
        if self._checkers and not coalescing:
            PENDING_ERRORS.raise_due()
        if self._checker is not None:
            return self._conduct_checked(self._checker, arguments, launch, coalescing)
        if self._prover is None and arguments.synchronous and not coalescing:
            return self._run(arguments, launch)
        begin = partial(self._log.begin, arguments, current_source(), take_claim(self._log.group.name))
        if arguments.spec.kind is Kind.POINT_TO_POINT and self._prover is not None:
            if self._post is not None and arguments.device in self._post.devices:
                return self._post_and_launch(begin, arguments, partial(_in_turn, arguments, launch), coalescing)
            if self._messages is not None:
                return self._meet_and_launch(self._messages, begin(), arguments, launch, coalescing)
        if self._prover is None or arguments.spec.kind is Kind.POINT_TO_POINT:
            entry = begin(started=True)
            flight = _watch(entry, arguments, coalescing)
            inner = self._launch(entry, arguments, launch, flight)
            if flight is not None and (before_it_runs := getattr(inner, "before_it_runs", None)) is not None:
                # The Work of a backend that says when all ranks have come.
                before_it_runs(flight.runs)
            return _recorded(inner, entry, flight)
        if arguments.asynchronous:
            return self._enqueue(self._prover, begin, arguments, launch)
        turn = Turn(arguments.device)
        entry = self._line.join(begin, turn.take)
        entry.awaited()
        try:
            flight = _watch(entry, arguments, coalescing)
            self._line.await_turn(entry)
            start = partial(self._launch, entry, arguments, launch)
            return _recorded(self._prove_and_launch(self._prover, entry, arguments, start, turn), entry, flight)
        finally:
            turn.end()
            self._line.leave(entry)

    def _run(self, arguments: Arguments, launch: Launch) -> Work | None:
        """Launch a call that is only recorded, and wait for it as whoever makes it is about to."""
        claim = take_claim(self._log.group.name)
        entry = self._log.begin(arguments, current_source(), claim, started=True, awaited=True)
        _watch(entry, arguments, False)
        inner = self._launch(entry, arguments, launch)
        if inner is None:
            return _recorded(None, entry)
        try:
            inner.wait()
        except MissingRankError as missing:
            entry.lacked(missing)
            raise
        except Exception as error:
            entry.failed(error)
            raise
        entry.waited_for()
        flights.here.waits += 1
        return inner

    def _conduct_checked(
        self, checker: Checker[Made], arguments: Arguments, launch: Launch, coalescing: bool
    ) -> Work | None:
        begin = partial(self._log.begin, arguments, current_source(), take_claim(self._log.group.name))
        if arguments.spec.kind is Kind.POINT_TO_POINT:
            return self._post_and_launch(begin, arguments, launch, coalescing)
        entry = begin(started=True)
        flight = _watch(entry, arguments, coalescing)
        blocks = arguments.spec.names_absent
        if blocks:
            checker.add((entry, get_ident()))
        inner = self._launch(entry, arguments, launch, flight)
        # A call that the backend refuses takes no place among the others: a rank may try it alone.
        if not blocks:
            checker.add((entry, get_ident()))
        if inner is None:
            return _recorded(None, entry, flight)
        return CheckedWork(inner, entry, flight, self._log.backend(arguments.device))

    def _post_and_launch(
        self, begin: Callable[..., Entry], arguments: Arguments, launch: Launch, coalescing: bool
    ) -> Work | None:
        entry = begin(started=True)
        backend = self._log.backend(arguments.device)
        lane = 0 if backend is None else backend.channel(entry.call.tag, batched=coalescing)
        posted = None if self._post is None else self._post.post(entry, lane)
        if posted is not None and not self._fits(posted, arguments, coalescing):
            return None
        flight = _watch(entry, arguments, coalescing)
        taken = False
        try:
            inner = self._launch(entry, arguments, launch, flight)
            taken = True
        finally:
            if posted is not None:
                posted.launched = taken
            if not taken and self._messages is not None:
                # What was refused takes no place among the messages: from here on the two ends count differently.
                self._messages.stop(None)
        if inner is None:
            return _recorded(None, entry, flight)
        failed = None if self._post is None else self._post.failed
        # A wait for a message that times out takes Gloo's connections with it: it must not look up now and then.
        return CheckedWork(inner, entry, flight, failed=failed)

    def _fits(self, posted: Posted, arguments: Arguments, coalescing: bool) -> bool:
        """Whether a message in ``detail`` mode may be launched; raises where its other end is there and disagrees.

        The other end is given a message that it fits, and is told in the background. A message that is one of a batch
        holds up none of the others: the batch raises, when it is launched.
        """
        if self._messages is None or self._prover is None:
            return True
        try:
            self._messages.announce(posted.entry, arguments, posted.lane)
        except CollectiveMismatchError as error:
            posted.told = posted.launched = True
            posted.entry.finished(State.FAILED)
            if not coalescing:
                raise
            self._unfit = self._unfit or error
            return False
        return True

    def raise_unfit(self) -> None:
        """Raise what is wrong with a message of the batch that has just been launched."""
        error, self._unfit = self._unfit, None
        if error is not None:
            raise error

    def _enqueue(self, prover: Prover, begin: Callable[[], Entry], arguments: Arguments, launch: Launch) -> Work:
        works: list[QueuedWork] = []
        backend, turn = self._log.backend(arguments.device), Turn(arguments.device)
        as_caller = as_called(arguments, backend)
        end_profile = profiled(arguments, backend)

        def enqueue(entry: Entry) -> None:
            flight = _watch(entry, arguments, False)
            works.append(work := QueuedWork(entry, self._futures, flight, arguments.on))
            launched = launch if flight is None else flight.launching(launch)
            # On the stream of the launch too: the mark of its beginning.
            start = partial(as_caller, partial(self._launch, entry, arguments, launched))
            turn.take(entry)
            self._queue.run(partial(self._settle, prover, entry, arguments, start, work, turn, end_profile))

        # The queue's thread must serve the calls in the order of the line.
        self._line.join(begin, enqueue)
        return works[0]

    def _settle(
        self,
        prover: Prover,
        entry: Entry,
        arguments: Arguments,
        start: Launch,
        work: QueuedWork,
        turn: Turn,
        end_profile: Callable[[], None] | None,
    ) -> None:
        inner: Work | None = None
        failure: Exception | None = None
        try:
            try:
                self._line.await_turn(entry)
                if self._given_up:
                    entry.finished(State.REJECTED)
                    raise RuntimeError("the process group was aborted before this call was launched")
                inner = self._prove_and_launch(prover, entry, arguments, start, turn)
            except Exception as error:
                failure = error
            # First: who waits for the work may end the profile right after.
            if end_profile is not None:
                _when_ended(inner, end_profile)
            work.settle(inner, failure)
        finally:
            # Last: whoever waits for the launches of the group finds that the Work knows of this one.
            turn.end()
            self._line.leave(entry)

    def _prove_and_launch(
        self, prover: Prover, entry: Entry, arguments: Arguments, start: Launch, turn: Turn
    ) -> Work | None:
        try:
            prover.prove(entry, arguments.timeout, first_absent_only=arguments.first_absent_only)
        except MissingRankError as missing:
            entry.lacked(missing)
            # A rank that was told of a message that does not fit may have ended before this one was.
            PENDING_ERRORS.raise_due()
            raise
        turn.come()
        entry.started()
        return start()

    def _meet_and_launch(
        self, messages: Messages, entry: Entry, arguments: Arguments, launch: Launch, coalescing: bool
    ) -> Work | None:
        """A send or receive: judged here if its other end has come, or else when it is done."""
        try:
            check = messages.announce(entry, arguments, entry.call.tag or 0)
        except CollectiveMismatchError:
            entry.finished(State.FAILED)
            raise
        flight = _watch(entry, arguments, coalescing)
        entry.started()
        try:
            inner = self._launch(entry, arguments, launch, flight)
        except Exception:
            # What was refused takes no place among the messages: from here on the two ends count differently.
            messages.stop(check)
            raise
        return _recorded(inner, entry, flight, check)

    def _launch(self, entry: Entry, arguments: Arguments, launch: Launch, flight: Flight | None = None) -> Work | None:
        """Give the call to the backend; where that queues it on a device, the device tells of its end."""
        times, use = self._times, entry.prepared.use
        if times is None or use.device < 0:
            return _launch(entry, launch, flight)
        if self._section is not None:
            inner = _launch(entry, launch, flight)
            self._section.add(entry, arguments.tensors)
            return inner
        timed = times.begin(entry, entry.number, use.device)
        inner = _launch(entry, launch, flight)
        if timed is not None:
            entry.timed = timed
            # What whoever makes it waits for runs on the stream of this thread, whether or not it has a Work.
            behind = None if arguments.synchronous else inner
            times.queued(timed, (self._log, use.lane), behind, arguments.tensors, marked_late=use.marked_late)
        return inner

    def begin_section(self) -> None:
        """What is launched from here on is queued as one, when the section ends."""
        if self._times is not None:
            self._section = Section()

    def end_section(self, launch: Launch) -> Work | None:
        """Queue what was launched since the section began; returns the Work of all of it."""
        section, self._section = self._section, None
        if self._times is None or section is None or not section.entries:
            return launch()
        first = section.entries[0]
        timed = self._times.begin(section, first.number, first.use.device)
        inner = launch()
        section.launch(self._times, inner, timed)
        if inner is None:
            section.finished()
            return None
        return RecordedWork(inner, section)

    def capture(self, arguments: Arguments, launch: Launch, calls: list[CapturedCall]) -> Work | None:
        """Give the backend a call that a CUDA graph captures, in this thread and at once: it does not run."""
        entry = self._log.begin_captured(arguments, current_source())
        inner = _launch(entry, launch)
        entry.finished()
        calls.append(CapturedCall(weakref.ref(self), entry.prepared, entry.source))
        return inner

    def replay(self, calls: Sequence[CapturedCall]) -> GroupReplay | None:
        """What goes on here when a CUDA graph runs what it captured; None where the group has ended."""
        if self._closed:
            return None
        return GroupReplay(self._log, calls, self._line, self._prover, self._checker, self._times)

    def give_up(self) -> None:
        """Launch no call that waits for its launch: the group is about to be aborted."""
        self._given_up = True

    def await_launches(self) -> None:
        """Return when no call waits for its launch."""
        if self._pid == os.getpid():
            self._line.await_end()

    def finish(self) -> None:
        """Say that no call follows, without waiting: groups that then are closed in turn end together."""
        if self._pid == os.getpid():
            for checker in self._checkers:
                checker.finish()

    def close(self, seconds: float) -> None:
        """Let the queue finish, and the background prove, what they can within ``seconds``; let the side channel go.

        A forked child has neither: the connections that it inherited are its parent's.
        """
        if self._pid != os.getpid():
            return
        self._closed = True
        self._line.await_end(seconds)
        flights.here.look_after(last=True)
        self._queue.close()
        self._futures.close()
        if self._times is not None:
            self._times.settle(self._log, seconds)
        if self._prover is not None:
            self._prover.close()
        self.finish()
        deadline = time.monotonic() + seconds
        for checker in self._checkers:
            checker.close(max(deadline - time.monotonic(), 0))

    def raise_due(self) -> None:
        """Raise what the background found, if it was not raised yet."""
        if self._checkers:
            PENDING_ERRORS.raise_due()


def _in_turn(arguments: Arguments, launch: Launch) -> Work | None:
    turn = Turn(arguments.device)
    turn.take()
    try:
        turn.come()
        return launch()
    finally:
        turn.end()


def _launch(entry: Entry, launch: Launch, flight: Flight | None = None) -> Work | None:
    try:
        return launch()
    except Exception as error:
        if flight is not None:
            # Refused: its memory is free for another call.
            flight.end()
        # The thread that makes it has waited for all that there is; monitored_barrier does all it does in the call.
        entry.awaited()
        entry.failed(error, refused=not spec_of(entry.call).names_absent)
        raise


def _watch(entry: Entry, arguments: Arguments, coalescing: bool) -> Flight | None:
    """What the program is to be watched for until it has waited for the call, if that is for the program to do."""
    watched = flights.here
    watched.look_after()
    if not watches(arguments):
        watched.pass_by(entry, arguments)
        return None
    if coalescing or made_by_torch():
        entry.handed_on()
        watched.pass_by(entry, arguments)
        return None
    return watched.open(entry, arguments)


def _recorded(
    inner: Work | None, entry: Entry, flight: Flight | None = None, check: Callable[[], None] | None = None
) -> Work | None:
    """What the backend does in the call itself has no Work."""
    if inner is None:
        entry.finished()
        flights.here.waits += 1
        if flight is not None:
            flight.end()
        return None
    return RecordedWork(inner, entry, flight, check)


def _when_ended(inner: Work | None, end: Callable[[], None]) -> None:
    try:
        if inner is not None:
            inner.get_future().add_done_callback(lambda done: end())
            return
    except RuntimeError:
        # A backend without futures: the event ends with the launch.
        pass
    end()
