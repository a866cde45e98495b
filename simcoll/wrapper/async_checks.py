"""Watches the memory of asynchronous calls until they have been waited for: SC502, SC503, and half of SC501.

A call is *open* from the moment when it is made until its end has been observed. A backend may have finished it long
before; but a program that has not waited for anything since may not rely on that. Where it has waited for something
else (a barrier, an answer), which may imply the end of this call, only a call that is still running counts.

Only calls whose Work the program holds are watched. Calls that torch makes for itself (DistributedDataParallel,
functional collectives, pipelines) are waited for in ways of its own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from simcoll.core.rank_local import ProcessOwned, RankLocal
from simcoll.cuda.launch_order import LAUNCHES
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.failures import report_change, report_overlap
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.quick import OpenCall, open_calls
from simcoll.recorder.recorder import Entry
from simcoll.recorder.source import Site, current_site
from simcoll.spec.table import Kind
from simcoll.wrapper.call_memory import (
    ByRole,
    CallMemory,
    Region,
    SentPart,
    Watched,
    memory_noted,
    memory_of,
    results_of,
)
from simcoll.wrapper.later_names import named_later

T = TypeVar("T")

_MOST_ORPHANS = 4096
"""Calls whose Work was dropped that are remembered; of older ones the program holds the result."""

_LOOK_SECONDS = 0.05
_OUTLIVED_SECONDS = 0.5
"""A result that is still there so long after its Work was dropped is held by the program: a thread of the backend, on a
busy machine, lets go of it a while after the call has ended.
"""


class FlightEnd(Protocol):
    """A Work that can be asked whether the call has ended."""

    def has_ended(self) -> bool:
        """True if the call has ended."""
        ...


class Flight:
    """One call that is open."""

    __slots__ = (
        "_arriving",
        "_flights",
        "_named_later",
        "_parts",
        "_queued",
        "_told",
        "_watched",
        "_work",
        "_written",
        "entry",
        "overlapped",
        "regions",
        "shared",
        "since",
    )

    def __init__(self, flights: Flights, entry: Entry, site: Site, memory: CallMemory) -> None:
        self.entry = entry
        self.regions = memory.regions
        self.since = flights.waits
        self.shared = False
        self.overlapped = False
        self._work: Callable[[], FlightEnd | None] = _nothing
        self._queued = False
        self._told = False
        self._written = memory.written
        self._named_later = bool(memory.written) and named_later(site, memory.written)
        self._watched = memory.watched
        self._arriving: list[Watched] = []
        self._parts = memory.parts
        self._flights = flights

    @property
    def open(self) -> bool:
        """True if a program may not rely on its end yet."""
        return self._flights.waits == self.since or self.running

    @property
    def running(self) -> bool:
        """True if it is known not to have ended yet."""
        work = self._work()
        if work is None or not self.entry.use.tells or _captures(self.entry):
            return False
        # A backend may raise an error here that the program is to get where it waits.
        with contextlib.suppress(RuntimeError):
            return not work.has_ended()
        return False

    def follow(self, work: FlightEnd) -> None:
        """``work`` is the Work that the program was given for it."""
        self._work = weakref.ref(work)

    def dropped(self) -> None:
        """Note that the program dropped the Work: it can not be waited for any more."""
        self.entry.let_go(later=self._flights.waits != self.since)
        # First: what is watched is held.
        self._flights.orphaned(self.entry, self._written, named_later=self._named_later)
        self._watched, self._arriving = [], []
        self.end()

    def launching(self, launch: Callable[[], T]) -> Callable[[], T]:
        """``launch``, for a call that is launched later than it was made: its inputs may have changed."""

        def launched() -> T:
            self._check_before_it_runs()
            self._queued = False
            return launch()

        self._queued = True
        return launched

    def runs_later(self) -> Callable[[], None]:
        """Returns a function for the backend to call when it runs the call, whose inputs may have changed by then."""
        self._told = True
        return self._check_before_it_runs

    def awaited(self) -> None:
        """Note that a thread begins to wait for it: the last moment at which a write to what it sends can be seen."""
        self.looked_at()
        self._watched, self._parts = [], []
        self._flights.remove(self)

    def arrived(self) -> None:
        """Note that its end has been observed: the backend counts no version of a result any more."""
        if self._arriving:
            arriving, self._arriving = self._arriving, []
            if not self.shared and any(watched.changed() for watched in arriving):
                report_change(self.entry, known=False)

    def looked_at(self) -> None:
        """Note that a thread waits for it, and may give up: a write to its buffers so far can be seen."""
        self._flights.before_a_wait(self)
        self._arriving = []
        if self._flights.waits == self.since or self.running:
            if self.entry.prepared.use.counts:
                self._arriving = [watched for watched in self._watched if watched.counts]
            # The worker may launch it meanwhile.
            parts = self._parts and [part for part in self._parts if not part.receives]
            self._check(known=self._queued, parts=parts)

    def others_waited_for(self) -> None:
        """Note that a thread begins to wait, for the first time since the call: that may imply the end of this one."""
        if self._watched and self.open:
            # A backend that says when it runs the call shows for certain whether its inputs have changed by then.
            self._check(known=self._queued, parts=(), inputs=not self._told)

    def lands(self) -> Flight:
        """Note that a wait for it has begun already, at whose end the versions of its results are to be looked at."""
        self._arriving, self._watched = [watched for watched in self._watched if watched.counts], []
        return self

    def end(self) -> None:
        """Watch it no more."""
        self._watched, self._parts = [], []
        self._flights.remove(self)

    def _check_before_it_runs(self) -> None:
        self._check(known=True, parts=self._parts)
        self._parts = [part for part in self._parts if not part.receives]

    def _check(self, *, known: bool, parts: Sequence[SentPart], inputs: bool = True) -> None:
        changed = sent = False
        for one in () if self.shared else self._watched:
            if (inputs or not one.sent) and one.changed():
                changed, sent = True, sent or one.sent
        if parts and not sent and not self.overlapped:
            sent = any(part.changed() for part in parts)
        if changed or sent:
            self._watched, self._arriving, self._parts = [], [], []
            report_change(self.entry, known=known and sent)


@dataclass(frozen=True, slots=True, eq=False)
class _Orphan:
    """A call whose Work is gone, the memory of its result, and the time at which it went."""

    entry: Entry
    storages: tuple[StorageWeakRef, ...]
    since: float
    waits: int
    named_later: bool

    def is_gone(self) -> bool:
        """True if nobody can read the result any more."""
        return all(storage.expired() for storage in self.storages)


class Flights(ProcessOwned):
    """The open calls of this process, by the memory that they use."""

    def __init__(self) -> None:
        self.waits = 0
        """The number of waits for the end of a call; it only has to differ."""
        self._by_storage: dict[int, list[Flight]] = {}
        self._unwaited: dict[int, Flight] = {}
        self._lock = threading.RLock()
        self._orphans: deque[_Orphan] = deque(maxlen=_MOST_ORPHANS)
        self._looked = 0.0
        self.quick = open_calls(self, self._by_storage, self._orphans)
        """The open calls that went the quick way, if calls can."""
        super().__init__()

    def forked(self) -> None:
        """The calls are the parent's; a Work that the child drops finds none, and a lock that is free."""
        self._by_storage.clear()
        self._unwaited.clear()
        self._orphans.clear()
        self._lock = threading.RLock()
        if self.quick is not None:
            self.quick.forget()

    def open(self, entry: Entry, tensors: ByRole, site: Site, *, parts: bool = False) -> Flight | None:
        """Note that a call was made whose Work goes to the program; None where there is no memory to watch.

        ``parts`` has writes seen in parts of storages too, which costs two looks at the sent data.
        """
        if self._orphans:
            self.look_after()
        if self.quick:
            self._note_quick()
        memory = _memory(entry, tensors, parts=parts)
        if not memory.regions:
            return None
        flight = Flight(self, entry, site, memory)
        if self._by_storage:
            self._meet(entry, memory.regions, flight)
        self._add(flight)
        self._unwaited[id(flight)] = flight
        return flight

    def _add(self, flight: Flight) -> None:
        with self._lock:
            for region in flight.regions:
                members = self._by_storage.setdefault(region.storage, [])
                # A call may use several parts of one storage.
                if not members or members[-1] is not flight:
                    members.append(flight)

    @property
    def busy(self) -> tuple[Sized, ...]:
        """Empty, all of them, while no call is open but :attr:`quick` ones."""
        return (self._by_storage,)

    # Calls that went the quick way. Whoever looks at open calls takes them over first.

    def _note_quick(self) -> None:
        for call in () if self.quick is None else self.quick.all():
            self.note(call)

    def note(self, call: OpenCall) -> Flight | None:
        """The flight of an open call that went the quick way, which is watched here from now on; None of any other."""
        with self._lock:
            if call.is_open:
                flight = self._flight_of(call)
                flight.follow(call)
                if call.unwaited:
                    self._unwaited[id(flight)] = flight
                call.noted(flight)
                self._add(flight)
            found: Flight | None = call.flight
            return found

    def _flight_of(self, call: OpenCall) -> Flight:
        try:
            memory = memory_noted(call)
        except (RuntimeError, TypeError, AttributeError):
            memory = CallMemory([], [], [], [])
        flight = Flight(self, call.log.entry(call), call.place, memory)
        flight.since = call.since
        return flight

    def taken(self, call: OpenCall) -> tuple[Entry, Flight | None, Flight | None]:
        """Take a call over from the quick way: its entry, its flight if it is open, and that of which a wait has begun,
        if its results show writes.
        """
        with self._lock:
            flight = self.note(call)
            landing = self._flight_of(call).lands() if call.arriving else None
            known = flight or landing
            entry = call.log.entry(call) if known is None else known.entry
            call.ended()
        return entry, flight, landing

    def changed(self, call: OpenCall) -> None:
        """Another wait begins, for the first time since an open call was made, whose buffers have changed."""
        if (flight := self.note(call)) is not None:
            flight.others_waited_for()

    def arrived(self, call: OpenCall) -> None:
        """A call that went the quick way has been waited for, and its results have more versions than it adds."""
        self._flight_of(call).lands().arrived()

    def dropped(self, call: OpenCall, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """The Work of a call that went the quick way was dropped."""
        # The interpreter's end takes away this module's names.
        if is_finalizing():
            return
        if call.flight is not None:
            call.flight.dropped()
            return
        entry, written = call.log.entry(call), results_of(call)
        entry.let_go(later=self.waits != call.since)
        self.orphaned(entry, written, named_later=bool(written) and named_later(call.place, written))

    def before_a_wait(self, waited: Flight | None = None) -> None:
        """Note that a thread begins to wait for the end of a call: writes to buffers of others can still be seen.

        The ``waited`` call looks at its own buffers itself.
        """
        if self.quick:
            self._note_quick()
        if waited is not None:
            self._unwaited.pop(id(waited), None)
        if self._unwaited:
            unwaited, self._unwaited = self._unwaited, {}
            for flight in [*unwaited.values()]:
                flight.others_waited_for()

    def pass_by(self, entry: Entry, tensors: ByRole) -> None:
        """Note a call that cannot be left open; costs nothing while none is open."""
        if self.quick:
            self._note_quick()
        if self._unwaited and not entry.asynchronous:
            self.before_a_wait()
        if self._orphans:
            self.look_after()
        if self._by_storage and (regions := _memory(entry, tensors).regions):
            self._meet(entry, regions, None)

    def remove(self, flight: Flight) -> None:
        """Forget a call."""
        self._unwaited.pop(id(flight), None)
        with self._lock:
            for region in flight.regions:
                members = self._by_storage.get(region.storage, ())
                alone = len(members) == 1 and members[0] is flight
                # Another list: one that somebody goes through must stay as it is.
                if not alone and (others := [other for other in members if other is not flight]):
                    self._by_storage[region.storage] = others
                else:
                    self._by_storage.pop(region.storage, None)

    def orphaned(self, entry: Entry, written: list[weakref.ref[torch.Tensor]], *, named_later: bool) -> None:
        """Note that a call's Work was dropped before it was waited for.

        That is harmless if its result is dropped with it, and not named by a later line of those that made the call.
        """
        tensors = [tensor for reference in written if (tensor := reference()) is not None]
        if tensors and len(tensors) == len(written):
            storages = tuple(StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)
            self._orphans.append(_Orphan(entry, storages, time.monotonic(), self.waits, named_later))

    def look_after(self, *, last: bool = False) -> None:
        """Mark dropped calls as harmless if their result can no longer be read, and report those whose result can.

        ``last`` gives those that have just been dropped a moment to end.
        """
        if not self._orphans:
            return
        orphans, now = list(self._orphans), time.monotonic()
        if not last and now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        if last and orphans:
            self.waits += 1
            limit = orphans[-1].since + _OUTLIVED_SECONDS
            while time.monotonic() < limit and not all(one.is_gone() for one in orphans):
                time.sleep(_LOOK_SECONDS / 10)
        for orphan in orphans:
            gone = orphan.is_gone()
            outlived = time.monotonic() - orphan.since >= _OUTLIVED_SECONDS
            if gone and not orphan.named_later:
                orphan.entry.handed_on()
            # Until the end a program may still wait for a whole device.
            decided = outlived and orphan.entry.use.on_cpu and self.waits != orphan.waits
            if gone or decided:
                with contextlib.suppress(ValueError):
                    self._orphans.remove(orphan)

    def device_synchronized(self) -> None:
        """Note that the program has waited for all work of its devices."""
        # Lists first: a Work that is let go meanwhile, in this thread too, takes its call out.
        with self._lock:
            flights = {id(one): one for members in list(self._by_storage.values()) for one in members}
        self.waits += 1
        for flight in flights.values():
            if not flight.entry.use.on_cpu:
                flight.entry.awaited()
                flight.awaited()
        for orphan in list(self._orphans):
            if not orphan.entry.use.on_cpu:
                orphan.entry.awaited()
                with contextlib.suppress(ValueError):
                    self._orphans.remove(orphan)

    def _meet(self, entry: Entry, regions: list[Region], flight: Flight | None) -> None:
        with self._lock:
            met = {id(one): one for region in regions for one in self._by_storage.get(region.storage, ())}
        for other in met.values():
            # Versions say nothing of memory that another call writes to as well.
            other.shared |= any(mine.writes for mine in regions)
            if flight is not None:
                flight.shared |= any(its.writes for its in other.regions)
            overlaps = [(mine, its) for mine in regions for its in other.regions if mine.overlaps(its)]
            if overlaps:
                other.overlapped = True
                if flight is not None:
                    flight.overlapped = True
            if overlaps and other.open and not _in_order(entry, other.entry) and not current_site().by_torch:
                both = any(mine.writes and its.writes for mine, its in overlaps)
                report_overlap(entry, other.entry, both_write=both, running=other.running)


flights = RankLocal(Flights)


def noting_synchronization(synchronize: Callable[..., None]) -> Callable[..., None]:
    """Wrap a wait for a whole device, which no Work sees: it waits for calls that ``detail`` has yet to launch, too."""

    @functools.wraps(synchronize)
    def synchronized(*args: Any, **kwargs: Any) -> None:
        LAUNCHES.await_launches(PENDING_ERRORS.raise_due)
        synchronize(*args, **kwargs)
        flights.here.device_synchronized()

    return synchronized


def _nothing() -> None:
    return None


def _memory(entry: Entry, tensors: ByRole, *, parts: bool = False) -> CallMemory:
    """Returns the memory of a call; none where a tensor's kind does not state it: a call must not fail for that."""
    use = entry.prepared.use
    try:
        sends = use.sends and not use.copies
        return memory_of(tensors, writes=use.writes, sends=sends, counts=use.counts, parts=parts)
    except (RuntimeError, TypeError, AttributeError):
        return CallMemory([], [], [], [])


def _captures(entry: Entry) -> bool:
    """True while a CUDA graph is being captured, in which no Work may be asked whether it has ended."""
    return not entry.use.on_cpu and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _in_order(entry: Entry, other: Entry) -> bool:
    """True if the backend runs both, one after the other."""
    if entry.log is not other.log:
        return False
    devices = {buffer.device for buffer in (*entry.call.inputs, *entry.call.outputs)}
    backends = [backend for device in devices if (backend := entry.log.backend(device)) is not None]
    return all(backend.in_order for backend in backends)


def watches(arguments: Arguments) -> bool:
    """True if a call returns before its end: it says so, or is a send or receive, which never say."""
    return arguments.asynchronous or arguments.spec.kind is Kind.POINT_TO_POINT
