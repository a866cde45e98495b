"""Mode ``detail``: the calls of a group are proved before they are launched.

The calls stand in one queue, in the order in which they were made, and are proved and launched one at a time: a
synchronous call in the thread that makes it, one that says it is asynchronous, which returns at once, in a thread of
the group's own. So calls of one group keep their order, and a program that waits for its asynchronous calls in any
order it likes meets no deadlock that it did not have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from torch.distributed import Work

from simcoll.core.record import State
from simcoll.cuda.graph_replay import CapturedCall, GroupReplay, ProvedReplay
from simcoll.cuda.launch_order import Turn, turn_on
from simcoll.cuda.watcher import DeviceTimes
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.proof.checker import MessageChecker
from simcoll.proof.p2p_channel import Posted
from simcoll.proof.p2p_detail import Messages
from simcoll.proof.prover import Prover
from simcoll.proof.queue import ProofQueue
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.quick import Conditions, Quick
from simcoll.recorder.recorder import Entry, GroupLog, Written
from simcoll.recorder.source import Site, current_site
from simcoll.spec.table import Kind
from simcoll.wrapper.async_checks import flights
from simcoll.wrapper.ddp import take_claim
from simcoll.wrapper.pipeline import BackgroundPipeline, Launch, Method, note_failure, note_refusal, recorded
from simcoll.wrapper.queued_work import QueuedWork, WorkerThreads, as_called, profiled

# A plain name: every look at a member of an enum costs.
_STARTED = State.STARTED

_FUTURE_THREADS = 2
"""As many as a Gloo group has: the callback of one future may wait for what another completes."""


class ProvedPipeline(BackgroundPipeline):
    """Mode ``detail``: ``prover`` proves collectives, ``messages`` sends and receives where both ends can be compared.

    ``post`` compares messages between GPUs in the background: an end that came first is done before the other comes.
    """

    watches_parts = True

    def __init__(
        self,
        log: GroupLog,
        times: DeviceTimes | None,
        prover: Prover,
        messages: Messages | None,
        post: MessageChecker | None,
    ) -> None:
        super().__init__(log, times, post)
        self._prover = prover
        self._messages = messages
        self._queue = ProofQueue()
        self._unfit: CollectiveMismatchError | None = None
        self._given_up = False
        self._worker = WorkerThreads(f"simcoll-{log.group.name}")
        self._futures = WorkerThreads(f"simcoll-{log.group.name}-futures", _FUTURE_THREADS)

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Prove a call and launch it; one that is synchronous and has to be waited for is waited for here."""
        if self._checkers and not coalescing:
            PENDING_ERRORS.raise_due()
        site = current_site()
        of_model = self._values is not None and self._is_of_model(site)
        claim = take_claim(self._log.group.name)
        begin = partial(self._log.begin, arguments, site.source, claim, of_model=of_model)
        if self._closed and self._pid == os.getpid():
            # The side channel is gone. Some backends would run the call.
            begin().finished(State.REJECTED)
            raise RuntimeError(f"process group {self._log.group.name} was destroyed on this rank before this call")
        if arguments.spec.kind is Kind.POINT_TO_POINT:
            return self._run_message(begin, arguments, launch, site, coalescing)
        if arguments.asynchronous:
            return self._enqueue(begin, arguments, launch, site)
        turn = turn_on(arguments.on)
        entry = self._queue.join(partial(begin, awaited=True), bool if turn is None else turn.take)
        try:
            flights.here.pass_by(entry, arguments.tensors)
            self._queue.await_turn(entry)
            start = partial(self._launch, entry, arguments, launch)
            inner = self._prove_and_launch(entry, arguments.timeout, start, turn, arguments.first_absent_only)
        finally:
            if turn is not None:
                turn.end()
            self._queue.leave(entry)
        if coalescing or not arguments.synchronous:
            return recorded(inner, entry)
        PENDING_ERRORS.raise_due()
        return self._wait(entry, inner)

    def _quick(self, conditions: Conditions) -> Quick | None:
        return self._log.quick(conditions, self._queue.waiting.append)

    def at_once(self, written: Written, method: Method, args: Sequence[object]) -> Work | None:
        """Prove a call, launch it and wait for it."""
        log, queue = self._log, self._queue
        try:
            if written[0].parts:
                log.recorder.parts_received += 1
            if queue.waiting[0] is not written:
                queue.await_turn(written)
            try:
                self._prover.prove_usual(written, args[-1], log.entry)
            except MissingRankError as missing:
                _note_missing(log.entry(written), missing)
                raise
            log.box.advance(written[3], _STARTED)
            try:
                inner = method(*args)
            except Exception as error:
                note_refusal(log.entry(written), error)
                raise
        finally:
            queue.leave(written)
        if PENDING_ERRORS.due:
            PENDING_ERRORS.raise_due()
        try:
            if inner is not None:
                inner.wait()
        except Exception as error:
            note_failure(log.entry(written), error)
            raise
        log.box.advance(written[3])
        self._flights.waits += 1
        return inner

    def _enqueue(self, begin: Callable[[], Entry], arguments: Arguments, launch: Launch, site: Site) -> Work:
        works: list[QueuedWork] = []
        backend, turn = self._log.backend(arguments.device), turn_on(arguments.on)
        as_caller = as_called(arguments, backend)
        end_profile = profiled(arguments, backend)

        def enqueue(entry: Entry) -> None:
            flight = self._watch(entry, arguments, site, False)
            works.append(work := QueuedWork(entry, self._futures, flight, arguments.on))
            launched = launch if flight is None else flight.launching(launch)
            # On the stream of the launch too: the mark of its beginning.
            start = partial(as_caller, partial(self._launch, entry, arguments, launched))
            if turn is not None:
                turn.take(entry)
            self._worker.run(partial(self._settle, entry, arguments, start, work, turn, end_profile))

        # The worker must serve the calls in the order of the queue.
        self._queue.join(begin, enqueue)
        return works[0]

    def _settle(
        self,
        entry: Entry,
        arguments: Arguments,
        start: Launch,
        work: QueuedWork,
        turn: Turn | None,
        end_profile: Callable[[], None] | None,
    ) -> None:
        inner: Work | None = None
        failure: Exception | None = None
        try:
            try:
                self._queue.await_turn(entry)
                if self._given_up:
                    entry.finished(State.REJECTED)
                    raise RuntimeError("the process group was aborted before this call was launched")
                inner = self._prove_and_launch(entry, arguments.timeout, start, turn, arguments.first_absent_only)
            except Exception as error:
                failure = error
            # End the profile before waiters resume: they may end the profiler right after.
            try:
                if end_profile is not None:
                    _when_ended(inner, end_profile)
            finally:
                work.settle(inner, failure)
        finally:
            # Release the turn only when the Work is settled: a wait for the group's launches relies on that.
            if turn is not None:
                turn.end()
            self._queue.leave(entry)

    def _prove_and_launch(
        self,
        entry: Entry,
        timeout: timedelta | None,
        start: Launch,
        turn: Turn | None,
        first_absent_only: bool,
    ) -> Work | None:
        try:
            self._prover.prove(entry, timeout, first_absent_only=first_absent_only)
        except MissingRankError as missing:
            _note_missing(entry, missing)
            raise
        if turn is not None:
            turn.come()
        entry.started()
        return start()

    def _run_message(
        self, begin: Callable[..., Entry], arguments: Arguments, launch: Launch, site: Site, coalescing: bool
    ) -> Work | None:
        """Launch a send or receive: compared here if its other end has come, or else later."""
        if self._post is not None and arguments.device in self._post.devices:
            launch = partial(_in_turn, arguments, launch)
            return self._post_and_launch(begin(started=True), arguments, launch, site, coalescing)
        if self._messages is not None:
            return self._meet_and_launch(self._messages, begin(), arguments, launch, site, coalescing)
        return self._follow(begin(started=True), arguments, launch, site, coalescing)

    def _meet_and_launch(
        self, messages: Messages, entry: Entry, arguments: Arguments, launch: Launch, site: Site, coalescing: bool
    ) -> Work | None:
        """A message judged here if its other end has come, or else when it is done."""
        try:
            check = messages.announce(entry, arguments, entry.call.tag or 0)
        except CollectiveMismatchError:
            entry.finished(State.FAILED)
            raise
        flight = self._watch(entry, arguments, site, coalescing)
        entry.started()
        try:
            inner = self._launch(entry, arguments, launch, flight)
        except Exception:
            # A refused call takes no place among the messages: from here on the two ends count differently.
            messages.stop(check)
            raise
        return recorded(inner, entry, flight, check)

    def _admits(self, posted: Posted, arguments: Arguments, coalescing: bool) -> bool:
        """True if a message between GPUs may be launched; raises where its other end is there and disagrees.

        The other end is given a message that it fits, and learns of it in the background. A message of a batch holds up
        none of the others: the batch raises, when it is launched.
        """
        if self._messages is None:
            return True
        try:
            self._messages.announce(posted.entry, arguments, posted.channel)
        except CollectiveMismatchError as error:
            posted.reported = posted.launched = True
            posted.entry.finished(State.FAILED)
            if not coalescing:
                raise
            self._unfit = self._unfit or error
            return False
        return True

    def _refused(self) -> None:
        if self._messages is not None:
            # A refused call takes no place among the messages: from here on the two ends count differently.
            self._messages.stop(None)

    def end_section(self, launch: Launch) -> Work | None:
        """Queue the calls launched since the section began; raises the mismatch of a message of it."""
        work = super().end_section(launch)
        error, self._unfit = self._unfit, None
        if error is not None:
            raise error
        return work

    def _replayed(self, calls: Sequence[CapturedCall]) -> GroupReplay:
        return ProvedReplay(self._log, calls, self._times, self._queue, self._prover)

    def give_up(self) -> None:
        """Launch no call that waits for its launch: the group is about to be aborted."""
        self._given_up = True

    def await_launches(self) -> None:
        """Return when no call waits for its launch."""
        if self._pid == os.getpid():
            self._queue.await_end()

    def close(self, seconds: float) -> None:
        """Let the queue finish as much as it can within ``seconds``, then close the side channel.

        A forked child has neither: the connections that it inherited are its parent's.
        """
        if self._pid == os.getpid():
            self._queue.await_end(seconds)
            self._worker.close()
            self._futures.close()
            self._prover.close()
        super().close(seconds)


def _note_missing(entry: Entry, missing: MissingRankError) -> None:
    entry.lacked(missing)
    # A rank that has raised for a message that does not fit may have ended before this one was.
    PENDING_ERRORS.raise_due()


def _in_turn(arguments: Arguments, launch: Launch) -> Work | None:
    turn = turn_on(arguments.on)
    if turn is None:
        return launch()
    turn.take()
    try:
        turn.come()
        return launch()
    finally:
        turn.end()


def _when_ended(inner: Work | None, end: Callable[[], None]) -> None:
    try:
        future = None if inner is None else inner.get_future()
    except Exception:
        # A backend without futures: the event ends with the launch.
        future = None
    if future is None:
        end()
    else:
        future.add_done_callback(lambda done: end())
