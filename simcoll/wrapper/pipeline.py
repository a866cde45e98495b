"""Carries out the calls of one group: what all modes share, and mode ``record``, in which calls are only written down.

The other modes are :class:`~simcoll.wrapper.checked_pipeline.CheckedPipeline` and
:class:`~simcoll.wrapper.proved_pipeline.ProvedPipeline`; :func:`~simcoll.wrapper.modes.pipeline_of` chooses.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence

from torch.distributed import Work

from simcoll.cuda.coalesced import Section
from simcoll.cuda.graph_replay import CapturedCall, GroupReplay
from simcoll.cuda.watcher import DeviceTimes
from simcoll.errors import MissingRankError
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.recorder import Entry, GroupLog
from simcoll.recorder.source import current_source, made_by_torch
from simcoll.spec.collectives import spec_of
from simcoll.wrapper.async_checks import Flight, flights, watches
from simcoll.wrapper.ddp import take_claim
from simcoll.wrapper.work import RecordedWork

Launch = Callable[[], Work | None]
"""Gives the call to the backend, which does its own checks of the arguments and may refuse."""


class Pipeline:
    """The calls of one group on this rank; a subclass is a mode."""

    def __init__(self, log: GroupLog, times: DeviceTimes | None = None) -> None:
        """``times`` watches calls that a backend queues on a device, if the group has such a backend."""
        self._log = log
        self._times = times
        self._section: Section | None = None
        self._pid = os.getpid()
        self._closed = False

    @property
    def log(self) -> GroupLog:
        """Where the group's calls are written down."""
        return self._log

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Record a call, compare it as the mode does, launch it; returns its Work, None where it is done.

        What is launched while c10d is ``coalescing`` is launched by its thread, and waited for all at once.
        """
        raise NotImplementedError

    def _follow(self, entry: Entry, arguments: Arguments, launch: Launch, coalescing: bool) -> Work | None:
        """Launch a call at once; the program waits for the Work that it gets."""
        flight = watch(entry, arguments, coalescing)
        inner = self._launch(entry, arguments, launch, flight)
        if flight is not None and (before_it_runs := getattr(inner, "before_it_runs", None)) is not None:
            # The Work of a backend that says when all ranks have come.
            before_it_runs(flight.runs)
        return recorded(inner, entry, flight)

    def _wait(self, entry: Entry, inner: Work | None) -> Work | None:
        """Wait for a launched call as whoever makes it is about to; returns the backend's Work, which is done."""
        if inner is None:
            return recorded(None, entry)
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

    def _launch(self, entry: Entry, arguments: Arguments, launch: Launch, flight: Flight | None = None) -> Work | None:
        """Give the call to the backend; where that queues it on a device, the device's events time it."""
        try:
            if self._times is None or entry.prepared.use.device < 0:
                return launch()
            return self._queue_on_device(self._times, entry, arguments, launch)
        except Exception as error:
            _note_refusal(entry, error, flight)
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
        try:
            inner = launch()
        except Exception as error:
            _note_refusal(entry, error)
            raise
        entry.finished()
        calls.append(CapturedCall(weakref.ref(self), entry.prepared, entry.source))
        return inner

    def replay(self, calls: Sequence[CapturedCall]) -> GroupReplay | None:
        """What goes on here when a CUDA graph runs what it captured; None where the group has ended."""
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
            flights.here.look_after(last=True)
            if self._times is not None:
                self._times.settle(self._log, seconds)


class RecordedPipeline(Pipeline):
    """Mode ``record``: every call is written down and launched at once."""

    def run(self, arguments: Arguments, launch: Launch, *, coalescing: bool = False) -> Work | None:
        """Record a call and launch it; one that says that it is synchronous is waited for here."""
        source, claim = current_source(), take_claim(self._log.group.name)
        if arguments.synchronous and not coalescing:
            entry = self._log.begin(arguments, source, claim, started=True, awaited=True)
            flights.here.pass_by(entry, arguments)
            return self._wait(entry, self._launch(entry, arguments, launch))
        entry = self._log.begin(arguments, source, claim, started=True)
        return self._follow(entry, arguments, launch, coalescing)


def watch(entry: Entry, arguments: Arguments, coalescing: bool) -> Flight | None:
    """Watch the memory of a call until the program has waited for it; None where that is not for the program to do."""
    watched = flights.here
    if not watches(arguments):
        watched.pass_by(entry, arguments)
        return None
    if coalescing or made_by_torch():
        entry.handed_on()
        watched.pass_by(entry, arguments)
        return None
    return watched.open(entry, arguments)


def recorded(
    inner: Work | None, entry: Entry, flight: Flight | None = None, check: Callable[[], None] | None = None
) -> Work | None:
    """The Work that the program gets; None for what the backend has done in the call itself."""
    if inner is None:
        entry.finished()
        flights.here.waits += 1
        if flight is not None:
            flight.end()
        return None
    return RecordedWork(inner, entry, flight, check)


def _note_refusal(entry: Entry, error: Exception, flight: Flight | None = None) -> None:
    if flight is not None:
        # Its memory is free for another call.
        flight.end()
    # The thread that makes it has waited for all that there is; monitored_barrier does all it does in the call.
    entry.awaited()
    entry.failed(error, refused=not spec_of(entry.call).names_absent)
