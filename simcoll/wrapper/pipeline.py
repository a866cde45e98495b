"""Carries out the calls of one group: the base of all modes, mode ``record``, in which calls are only written down, and
mode ``check``, in which they are launched at once, and compared with the other ranks' in the background.

Mode ``detail`` is :class:`~simcoll.wrapper.proved_pipeline.ProvedPipeline`;
:func:`~simcoll.wrapper.modes.pipeline_of` chooses.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NoReturn

import torch
from torch.distributed import Work

from simcoll.backends.base import Backend
from simcoll.core.rank_local import RankLocal, acting
from simcoll.core.record import State
from simcoll.cuda.coalesced import Section
from simcoll.cuda.graph_replay import CapturedCall, CheckedReplay, GroupReplay
from simcoll.cuda.graphs import open_captures
from simcoll.cuda.watcher import DeviceTimes
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.proof.checker import Checker, Made, MessageChecker
from simcoll.proof.p2p_channel import Posted
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.quick import Conditions, OpenCall, Quick, Works
from simcoll.recorder.recorder import Entry, GroupLog, Written
from simcoll.recorder.session import unrecorded
from simcoll.recorder.source import Site, current_site, current_source
from simcoll.spec.collectives import spec_of
from simcoll.spec.table import Kind
from simcoll.wrapper.async_checks import Flight, flights, watches
from simcoll.wrapper.call_memory import ByRole
from simcoll.wrapper.ddp import open_claims, take_claim
from simcoll.wrapper.quick_work import CheckedQuickWork, QuickWork
from simcoll.wrapper.work import (
    LOOK_UP,
    CheckedWork,
    RecordedWork,
    looks_up,
    raise_mismatch_behind,
    wait_looking_up,
)

Method = Callable[..., Work | None]
"""The backend's own method."""

Launch = Callable[[], Work | None]
"""Gives the call to the backend, which does its own checks of the arguments and may refuse."""


class Pipeline:
    """The calls of one group on this rank; a subclass is a mode."""

    watches_parts = False
    """True if a write to a part of a storage that a call in flight sends is detected, by two looks at the part."""

    def __init__(self, log: GroupLog, times: DeviceTimes | None = None) -> None:
        """``times`` watches calls that a backend queues on a device, if the group has such a backend."""
        self._log = log
        self._times = times
        self._values = log.values
        self._flights = flights.here
        self._section: Section | None = None
        self._in_section = False
        self._pid = os.getpid()
        self._closed = False

    @property
    def log(self) -> GroupLog:
        """The log in which the group's calls are written down."""
        return self._log

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Record a call, compare it as the mode does, launch it; returns its Work, None where it is done.

        Calls made while c10d is ``coalescing`` are launched by its thread, and waited for all at once.
        """
        raise NotImplementedError

    def quick(self, active: RankLocal[Any] | None, session: object) -> Quick | None:
        """The quick way of calls of which there is nothing to note but that they were made, if there is one. It holds
        while ``active`` (None: always) has ``session``.
        """
        calls = self._flights.quick
        if self._closed or calls is None:
            return None
        quiet = PENDING_ERRORS.due, open_claims, open_captures, unrecorded, acting
        works, busy = self._quick_works(), self._flights.busy
        return self._quick(Conditions(calls, works, quiet, busy, active, session, *self._carries(works)))

    def _quick(self, conditions: Conditions) -> Quick | None:
        return self._log.quick(conditions)

    def _quick_works(self) -> Works:
        """The Works of asynchronous calls that go the quick way to their end."""
        return Works(QuickWork)

    def _carries(self, works: Works) -> tuple[bool, Callable[[Any], None] | None]:
        """Whether synchronous calls need nothing but their launch and a wait, and what else is to get them."""
        return False, None

    def at_once(self, written: Written, method: Method, args: Sequence[object]) -> Work | None:
        """Carry out a call that went the quick way and is not open, as :meth:`run` does."""
        raise NotImplementedError

    def wait_on(self, written: Written, inner: Work | None) -> Work | None:
        """Wait for a launched call that went the quick way."""
        raise NotImplementedError

    def failed(self, written: Written, error: Exception, waited: bool) -> NoReturn:
        """Note the error of a call that went the quick way to its end, and raise it."""
        try:
            raise error
        except Exception:
            note = self._note_failed_wait if waited else note_refusal
            note(self._log.entry(written), error)
            raise

    def _note_failed_wait(self, entry: Entry, error: Exception) -> None:
        """Note the error that the wait for a call raised, which may give way to another one."""
        note_failure(entry, error)

    def _launch_plain(
        self, entry: Entry, method: Method, args: Sequence[object], flight: Flight | None = None
    ) -> Work | None:
        """Give a call that went the quick way to the backend."""
        try:
            return method(*args)
        except Exception as error:
            note_refusal(entry, error, flight)
            raise

    def _fly(
        self, written: Written, method: Method, args: Sequence[object]
    ) -> tuple[Entry, Flight | None, Work | None]:
        """Launch an asynchronous call that went the quick way."""
        entry, tensors, site = self._log.entry(written), written[4], written[5]
        if entry.prepared.parts:
            self._log.recorder.parts_received += 1
        flight = watch(entry, tensors or {}, site, asynchronous=True, coalescing=False, parts=self.watches_parts)
        inner = self._launch_plain(entry, method, args, flight)
        _tell_when_it_runs(inner, flight)
        return entry, flight, inner

    def refused(self, call: OpenCall, error: Exception) -> NoReturn:
        """Note the error with which the backend has refused an open call, and raise it."""
        try:
            raise error
        except Exception:
            entry, flight, _ = self._flights.taken(call)
            note_refusal(entry, error, flight)
            raise

    def go_on(self, call: OpenCall) -> Work | None:
        """The Work of an open call that was launched, and cannot go the quick way to its end."""
        entry, flight, _ = self._flights.taken(call)
        _tell_when_it_runs(call.inner, flight)
        return self._ordinary(call.inner, entry, flight)

    def _ordinary(self, inner: Work | None, entry: Entry, flight: Flight | None) -> Work | None:
        """The Work of an asynchronous call that was launched."""
        return recorded(inner, entry, flight)

    def _is_of_model(self, site: Site) -> bool:
        """True if torch's own modules make a call, or a backward pass does; asked only where values are checked."""
        return site.of_model or torch._C._current_graph_task_id() >= 0

    def _follow(self, entry: Entry, arguments: Arguments, launch: Launch, site: Site, coalescing: bool) -> Work | None:
        """Launch a call at once; the program waits for the Work that it gets."""
        flight = self._watch(entry, arguments, site, coalescing)
        inner = self._launch(entry, arguments, launch, flight)
        _tell_when_it_runs(inner, flight)
        return recorded(inner, entry, flight)

    def _watch(self, entry: Entry, arguments: Arguments, site: Site, coalescing: bool) -> Flight | None:
        asynchronous = watches(arguments)
        parts = self.watches_parts
        return watch(entry, arguments.tensors, site, asynchronous=asynchronous, coalescing=coalescing, parts=parts)

    def _wait(self, entry: Entry, inner: Work | None) -> Work | None:
        """Wait for a launched call in place of its caller; returns the backend's Work, which is done."""
        if inner is None:
            return recorded(None, entry)
        try:
            inner.wait()
        except Exception as error:
            note_failure(entry, error)
            raise
        entry.waited_for()
        self._flights.waits += 1
        return inner

    def _launch(self, entry: Entry, arguments: Arguments, launch: Launch, flight: Flight | None = None) -> Work | None:
        """Give the call to the backend; where that queues it on a device, the device's events time it."""
        if self._values is not None and not self._in_section:
            both = arguments.tensors.get("inout", [])
            inputs, outputs = arguments.tensors.get("inputs", both), arguments.tensors.get("outputs", both)
            of_model = entry.of_model
            try:
                entry.values = self._values.begin(entry.call, entry.sequence, inputs, outputs, of_model=of_model)
            except BaseException:
                # The program was interrupted before the backend had the call.
                if flight is not None:
                    flight.end()
                entry.finished(State.FAILED)
                raise
        try:
            if self._times is None or entry.prepared.use.device < 0:
                return launch()
            return self._queue_on_device(self._times, entry, arguments, launch)
        except Exception as error:
            note_refusal(entry, error, flight)
            raise

    def _queue_on_device(self, times: DeviceTimes, entry: Entry, arguments: Arguments, launch: Launch) -> Work | None:
        use = entry.use
        if self._section is not None:
            inner = launch()
            self._section.add(entry, arguments.tensors)
            return inner
        timed = times.begin(entry, entry.number, use.device)
        inner = launch()
        if timed is not None:
            entry.timed = timed
            # A call that its caller waits for runs on the stream of this thread, whether or not it has a Work.
            behind = None if arguments.synchronous else inner
            times.queued(timed, (self._log, use.queue), behind, arguments.tensors, marked_late=use.marked_late)
        return inner

    def begin_section(self) -> None:
        """Begin a section: calls launched from here on are queued as one, when the section ends."""
        self._in_section = True
        if self._times is not None:
            self._section = Section()

    def end_section(self, launch: Launch) -> Work | None:
        """Queue what was launched since the section began; returns the Work of all of it."""
        section, self._section, self._in_section = self._section, None, False
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
        try:
            inner = launch()
        except Exception as error:
            note_refusal(entry, error)
            raise
        entry.finished()
        calls.append(CapturedCall(weakref.ref(self), entry.prepared, entry.source))
        return inner

    def replay(self, calls: Sequence[CapturedCall]) -> GroupReplay | None:
        """Returns the replay of this group's calls when a CUDA graph runs them; None where the group has ended."""
        return None if self._closed else self._replayed(calls)

    def _replayed(self, calls: Sequence[CapturedCall]) -> GroupReplay:
        return GroupReplay(self._log, calls, self._times)

    def give_up(self) -> None:
        """Launch no call that waits for its launch: the group is about to be aborted."""

    def await_launches(self) -> None:
        """Return when no call waits for its launch."""

    def raise_due(self) -> None:
        """Raise what was found in the background, if it was not raised yet."""

    def finish(self) -> None:
        """Note that no call follows, without waiting: groups that then are closed in turn end together."""

    def close(self, seconds: float) -> None:
        """End what the group has begun, within ``seconds``. A forked child has nothing of it."""
        if self._pid == os.getpid():
            self._closed = True
            if self._values is not None:
                self._values.settle(last=True)
            flights.here.look_after(last=True)
            if self._times is not None:
                self._times.settle(self._log, seconds)


class RecordedPipeline(Pipeline):
    """Mode ``record``: every call is written down and launched at once."""

    def _carries(self, works: Works) -> tuple[bool, Callable[[Any], None] | None]:
        return True, None

    def at_once(self, written: Written, method: Method, args: Sequence[object]) -> Work | None:
        """Launch an asynchronous call."""
        entry, flight, inner = self._fly(written, method, args)
        return recorded(inner, entry, flight)

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Record a call and launch it; one that says that it is synchronous is waited for here."""
        site, claim = current_site(), take_claim(self._log.group.name)
        of_model = self._values is not None and self._is_of_model(site)
        if arguments.synchronous and not coalescing:
            entry = self._log.begin(arguments, site.source, claim, started=True, awaited=True, of_model=of_model)
            self._flights.pass_by(entry, arguments.tensors)
            return self._wait(entry, self._launch(entry, arguments, launch))
        entry = self._log.begin(arguments, site.source, claim, started=True, of_model=of_model)
        return self._follow(entry, arguments, launch, site, coalescing)


def watch(
    entry: Entry, tensors: ByRole, site: Site, *, asynchronous: bool, coalescing: bool, parts: bool
) -> Flight | None:
    """Watch the memory of an ``asynchronous`` call until the program has waited for it; None where that is not for the
    program to do.

    ``parts`` has writes seen in parts of storages too.
    """
    watched = flights.here
    if not asynchronous:
        watched.pass_by(entry, tensors)
        return None
    if coalescing or site.by_torch:
        entry.handed_on()
        watched.pass_by(entry, tensors)
        return None
    return watched.open(entry, tensors, site, parts=parts)


def _tell_when_it_runs(inner: Work | None, flight: Flight | None) -> None:
    """Have the Work of a backend that knows when all ranks have come look at the inputs then."""
    if flight is not None and (before_it_runs := getattr(inner, "before_it_runs", None)) is not None:
        before_it_runs(flight.runs_later())


def recorded(
    inner: Work | None, entry: Entry, flight: Flight | None = None, check: Callable[[], None] | None = None
) -> Work | None:
    """The Work that the program gets; None for a call that the backend has completed in the call itself."""
    if inner is None:
        if spec_of(entry.call).names_absent:
            entry.awaited()  # monitored_barrier waits in the call
        entry.finished()
        flights.here.waits += 1
        if flight is not None:
            flight.end()
        return None
    return RecordedWork(inner, entry, flight, check)


def note_failure(entry: Entry, error: Exception) -> None:
    """Write down that the wait for a call failed."""
    if isinstance(error, MissingRankError):
        entry.lacked(error)
        entry.finished(State.FAILED)
    else:
        entry.failed(error)


def note_refusal(entry: Entry, error: Exception, flight: Flight | None = None) -> None:
    """Write down that the backend did not take a call, or has failed in it."""
    if flight is not None:
        # Its memory is free for another call.
        flight.end()
    # The thread that makes it has waited for everything; monitored_barrier does all its work in the call.
    entry.awaited()
    entry.failed(error, refused=not spec_of(entry.call).names_absent)


class BackgroundPipeline(Pipeline):
    """A pipeline with checkers in the background; ``post`` is the one of sends and receives, if there is one."""

    def __init__(
        self,
        log: GroupLog,
        times: DeviceTimes | None,
        post: MessageChecker | None,
        checkers: Sequence[Checker[Any]] = (),
    ) -> None:
        super().__init__(log, times)
        self._post = post
        self._checkers = [*checkers, *([] if post is None else [post])]
        for one in self._checkers:
            # A group that is merely dropped leaves no thread behind.
            weakref.finalize(self, one.abandon).atexit = False

    def _post_and_launch(
        self, entry: Entry, arguments: Arguments, launch: Launch, site: Site, coalescing: bool
    ) -> Work | None:
        """Launch a send or receive, whose ends are compared in the background."""
        backend = self._log.backend(arguments.device)
        channel = 0 if backend is None else backend.channel(entry.call.tag, batched=coalescing)
        posted = None if self._post is None else self._post.post(entry, channel)
        if posted is not None and not self._admits(posted, arguments, coalescing):
            return None
        flight = self._watch(entry, arguments, site, coalescing)
        taken = False
        try:
            inner = self._launch(entry, arguments, launch, flight)
            taken = True
        finally:
            if posted is not None:
                posted.launched = taken
            if not taken:
                self._refused()
        if inner is None:
            return recorded(None, entry, flight)
        failed = None if self._post is None else self._post.failed
        # A wait for a message that times out takes Gloo's connections with it: it must not look up now and then.
        return CheckedWork(inner, entry, flight, failed=failed)

    def _admits(self, posted: Posted, arguments: Arguments, coalescing: bool) -> bool:
        """True if a message may be launched."""
        return True

    def _refused(self) -> None:
        """The backend has refused a message."""

    def raise_due(self) -> None:
        """Raise what was found in the background, if it was not raised yet."""
        if self._checkers:
            PENDING_ERRORS.raise_due()

    def finish(self) -> None:
        """Note that no call follows, without waiting."""
        if self._pid == os.getpid():
            for checker in self._checkers:
                checker.finish()

    def close(self, seconds: float) -> None:
        """Let the background compare as much as it can within ``seconds``; a forked child has no part in it."""
        super().close(seconds)
        if self._pid == os.getpid():
            self.finish()
            deadline = time.monotonic() + seconds
            for checker in self._checkers:
                checker.close(max(deadline - time.monotonic(), 0))


class CheckedPipeline(BackgroundPipeline):
    """Mode ``check``; ``checker`` compares the collectives of the group."""

    def __init__(
        self, log: GroupLog, times: DeviceTimes | None, checker: Checker[Made], post: MessageChecker | None
    ) -> None:
        super().__init__(log, times, post, [checker])
        self._checker = checker
        self._cpu_backend = log.backend("cpu")

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Launch a call and hand it to the background; raises an error that the background has found before."""
        if not coalescing:
            PENDING_ERRORS.raise_due()
        site, claim = current_site(), take_claim(self._log.group.name)
        waits = arguments.synchronous and not coalescing
        of_model = self._values is not None and self._is_of_model(site)
        entry = self._log.begin(arguments, site.source, claim, started=True, awaited=waits, of_model=of_model)
        if arguments.spec.kind is Kind.POINT_TO_POINT:
            return self._post_and_launch(entry, arguments, launch, site, coalescing)
        flight = None
        if waits:
            self._flights.pass_by(entry, arguments.tensors)
        else:
            flight = self._watch(entry, arguments, site, coalescing)
        blocks = arguments.spec.names_absent
        if blocks:
            self._checker.add((entry, get_ident()))
        inner = self._launch(entry, arguments, launch, flight)
        # A call that the backend refuses takes no place among the others: a rank may try it alone.
        if not blocks:
            self._checker.add((entry, get_ident()))
        if inner is None:
            return recorded(None, entry, flight)
        backend = self._log.backend(arguments.device)
        if not waits:
            return CheckedWork(inner, entry, flight, backend)
        return self._wait_looking_up(entry, inner, backend)

    def _quick_works(self) -> Works:
        backend = self._cpu_backend
        if backend is None or not backend.waits_on_host:
            return Works(CheckedQuickWork)
        return Works(CheckedQuickWork, limit=LOOK_UP) if looks_up(backend) else Works(CheckedQuickWork, None)

    def _carries(self, works: Works) -> tuple[bool, Callable[[Any], None] | None]:
        # A backend whose waits cannot be tried for a moment is asked whether a call has ended.
        return works.plain is not None, self._checker.add

    def _ordinary(self, inner: Work | None, entry: Entry, flight: Flight | None) -> Work | None:
        if inner is None:
            return recorded(None, entry, flight)
        return CheckedWork(inner, entry, flight, self._cpu_backend)

    def at_once(self, written: Written, method: Method, args: Sequence[object]) -> Work | None:
        """Launch a call, hand it to the background, and wait for a synchronous one."""
        log = self._log
        if written[4] is not None:
            entry, flight, inner = self._fly(written, method, args)
            self._checker.add((entry, get_ident()))
            return self._ordinary(inner, entry, flight)
        if written[0].parts:
            log.recorder.parts_received += 1
        try:
            inner = method(*args)
        except Exception as error:
            note_refusal(log.entry(written), error)
            raise
        self._checker.add((written, get_ident()))
        return self.wait_on(written, inner)

    def wait_on(self, written: Written, inner: Work | None) -> Work | None:
        """Wait for a launched call that was handed to the background, and look up at times."""
        log = self._log
        if inner is None:
            return recorded(None, log.entry(written))
        PENDING_ERRORS.raise_due()
        try:
            wait_looking_up(inner, self._cpu_backend)
        except CollectiveMismatchError:
            raise
        except Exception as error:
            self._note_failed_wait(log.entry(written), error)
            raise
        log.box.advance(written[3])
        self._flights.waits += 1
        return inner

    def _wait_looking_up(self, entry: Entry, inner: Work, backend: Backend | None) -> Work:
        """Wait in place of the caller, as :class:`CheckedWork` does; returns the backend's Work, which is done."""
        PENDING_ERRORS.raise_due()
        try:
            wait_looking_up(inner, backend)
        except CollectiveMismatchError:
            # In place of a wait that may never end: the call itself goes on.
            raise
        except Exception as error:
            self._note_failed_wait(entry, error)
            raise
        entry.waited_for()
        self._flights.waits += 1
        return inner

    def _note_failed_wait(self, entry: Entry, error: Exception) -> None:
        note_failure(entry, error)
        raise_mismatch_behind(error)

    def _replayed(self, calls: Sequence[CapturedCall]) -> GroupReplay:
        return CheckedReplay(self._log, calls, self._times, self._checker)
