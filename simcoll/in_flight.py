"""Watches the memory of asynchronous calls until somebody has waited for them: SC502, SC503, and half of SC501.

A call is *open* from the moment when it is made until its end has been observed. A backend may have finished it long
before; but as long as the program has not waited for anything since, nothing entitles it to rely on that. Where it has
waited for something else (a barrier, an answer), which may imply the end of this call, only a call that is still
running counts.

Watched are the calls whose Work is in the program's own hands. What torch makes for itself (DistributedDataParallel,
functional collectives, pipelines) it waits for in ways of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from simcoll.capture import Arguments
from simcoll.recorder import Entry, Recorder, source_document
from simcoll.regions import Region, regions_of
from simcoll.source import current_source, made_by_torch
from simcoll.spec import Kind, spec_of

T = TypeVar("T")

_MOST_ORPHANS = 256

_OUTLIVED_SECONDS = 0.05
"""A result that is still there so long after its Work was dropped is held by the program."""

_MOST_TENSORS = 64
"""Tensors of a call beyond which its memory is not watched."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """A tensor that fills its storage, so that its version counter speaks for it alone."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    shape: torch.Size
    address: int

    def changed(self) -> bool:
        """Whether somebody has written to it since; one that got another shape or memory says nothing."""
        tensor = self.tensor()
        if tensor is None or tensor._version == self.version:
            return False
        return tensor.shape == self.shape and tensor.data_ptr() == self.address


class Ending(Protocol):
    """A Work that says whether the call has ended."""

    def has_ended(self) -> bool:
        """Whether it has."""
        ...


class Flight:
    """One call that is open."""

    def __init__(self, flights: Flights, entry: Entry, arguments: Arguments, regions: tuple[Region, ...]) -> None:
        self.entry = entry
        self.regions = regions
        self.since = flights.waits
        self.shared = False
        self._work: Callable[[], Ending | None] = _nothing
        self._queued = False
        self._written = _written(arguments, regions)
        self._flights = flights
        self._told = _tells(entry, arguments)
        self._watched = () if _copied_by_backend(entry, arguments) else _watched(arguments, regions, entry)

    @property
    def open(self) -> bool:
        """Whether a program may not rely on its end yet."""
        return self._flights.waits == self.since or self.running

    @property
    def running(self) -> bool:
        """Whether it is known not to have ended yet."""
        work = self._work()
        return self._told and work is not None and not work.has_ended()

    def follow(self, work: Ending) -> None:
        """``work`` is what the program was given for it."""
        self._work = weakref.ref(work)

    def dropped(self) -> None:
        """The program let its Work go; nobody can wait any more."""
        self._flights.orphaned(self.entry, self._written)
        self.end()

    def launching(self, launch: Callable[[], T]) -> Callable[[], T]:
        """``launch``, for a call that is launched later than it was made: what it was to send may have changed."""

        def launched() -> T:
            self._check(known=True)
            self._queued = False
            return launch()

        self._queued = True
        return launched

    def awaited(self) -> None:
        """Somebody begins to wait for it: the last moment at which a write to its buffers can be seen."""
        if self.open:
            self._check(known=self._queued)
        self.end()

    def end(self) -> None:
        """Watch it no more."""
        self._watched = ()
        self._flights.remove(self)

    def _check(self, *, known: bool) -> None:
        if not self.shared and any(watched.changed() for watched in self._watched):
            self._watched = ()
            _report_change(self.entry, known)


@dataclass(frozen=True, slots=True, eq=False)
class _Orphan:
    """A call whose Work is gone, the memory of its result, and when that was."""

    entry: Entry
    storages: tuple[StorageWeakRef, ...]
    since: float
    waits: int


class Flights:
    """The open calls of this process, by the memory that they use."""

    def __init__(self) -> None:
        self.waits = 0
        """How often somebody has waited for the end of a call; it only has to differ."""
        self._by_storage: dict[int, list[Flight]] = {}
        self._lock = threading.RLock()
        self._orphans: deque[_Orphan] = deque(maxlen=_MOST_ORPHANS)

    def open(self, entry: Entry, arguments: Arguments) -> Flight | None:
        """Note that a call was made whose Work goes to the program; None where there is no memory to watch."""
        regions = _regions(entry, arguments)
        if not regions:
            return None
        flight = Flight(self, entry, arguments, regions)
        self._meet(entry, regions, flight)
        with self._lock:
            for storage in {region.storage for region in regions}:
                self._by_storage.setdefault(storage, []).append(flight)
        return flight

    def pass_by(self, entry: Entry, arguments: Arguments) -> None:
        """Note that a call was made that nobody can leave open; costs nothing while none is."""
        if self._by_storage and (regions := _regions(entry, arguments)):
            self._meet(entry, regions, None)

    def remove(self, flight: Flight) -> None:
        """Forget a call."""
        with self._lock:
            for storage in {region.storage for region in flight.regions}:
                others = [other for other in self._by_storage.get(storage, ()) if other is not flight]
                if others:
                    self._by_storage[storage] = others
                else:
                    self._by_storage.pop(storage, None)

    def orphaned(self, entry: Entry, written: tuple[weakref.ref[torch.Tensor], ...]) -> None:
        """Note that nobody will wait for a call: no matter, if its result goes with it."""
        tensors = [tensor for reference in written if (tensor := reference()) is not None]
        if tensors and len(tensors) == len(written):
            storages = tuple(StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)
            self._orphans.append(_Orphan(entry, storages, time.monotonic(), self.waits))

    def look_after(self, *, last: bool = False) -> None:
        """Absolve the calls whose result nobody can read, and give up on those whose result is there to be read.

        ``last`` gives those that have just been dropped a moment to end.
        """
        if not self._orphans:
            return
        if last:
            time.sleep(max(0.0, self._orphans[-1].since + _OUTLIVED_SECONDS - time.monotonic()))
        for orphan in list(self._orphans):
            gone = all(storage.expired() for storage in orphan.storages)
            outlived = time.monotonic() - orphan.since >= _OUTLIVED_SECONDS
            if gone:
                orphan.entry.handed_on()
            if gone or (outlived and (last or self.waits != orphan.waits)):
                with contextlib.suppress(ValueError):
                    self._orphans.remove(orphan)

    def _meet(self, entry: Entry, regions: tuple[Region, ...], flight: Flight | None) -> None:
        with self._lock:
            met = {id(one): one for region in regions for one in self._by_storage.get(region.storage, ())}
        for other in met.values():
            other.shared = True
            if flight is not None:
                flight.shared = True
            overlaps = [(mine, its) for mine in regions for its in other.regions if mine.overlaps(its)]
            if overlaps and other.open and not _in_order(entry, other.entry) and not made_by_torch():
                both = any(mine.writes and its.writes for mine, its in overlaps)
                _report_overlap(entry, other, both)


flights = Flights()


def _nothing() -> None:
    return None


def _written(arguments: Arguments, regions: tuple[Region, ...]) -> tuple[weakref.ref[torch.Tensor], ...]:
    """The tensors in which the result of a call arrives."""
    if not any(region.writes for region in regions):
        return ()
    members = (*arguments.tensors.get("outputs", ()), *arguments.tensors.get("inout", ()))
    return tuple(map(weakref.ref, members))


def _regions(entry: Entry, arguments: Arguments) -> tuple[Region, ...]:
    if sum(map(len, arguments.tensors.values())) > _MOST_TENSORS:
        return ()
    return regions_of(entry.call, entry.log.group_rank, arguments.tensors)


def _tells(entry: Entry, arguments: Arguments) -> bool:
    """Whether the backend's Work says by itself when the call has ended; what is not known says nothing."""
    backend = entry.log.backend(arguments.device)
    return arguments.device == "cuda" if backend is None else entry.call.op not in backend.untold


def _copied_by_backend(entry: Entry, arguments: Arguments) -> bool:
    """Whether the backend itself writes the buffers back by a copy, which their versions show."""
    return entry.call.coalesced or (arguments.device != "cpu" and entry.log.backend(arguments.device) is not None)


def _watched(arguments: Arguments, regions: tuple[Region, ...], entry: Entry) -> tuple[_Watched, ...]:
    if not spec_of(entry.call).sends_inputs(entry.call, entry.log.group_rank):
        return ()
    # A backend counts up the version of what it writes as pure output whenever it likes.
    outputs = {tensor.untyped_storage()._cdata for tensor in arguments.tensors.get("outputs", ())}
    sent = [*arguments.tensors.get("inputs", ()), *arguments.tensors.get("inout", ())]
    return tuple(
        _Watched(weakref.ref(tensor), tensor._version, tensor.shape, tensor.data_ptr())
        for tensor in sent
        if _fills_storage(tensor) and tensor.untyped_storage()._cdata not in outputs
    )


def _fills_storage(tensor: torch.Tensor) -> bool:
    return not tensor.is_inference() and 0 < tensor.nbytes == tensor.untyped_storage().nbytes()


def _in_order(entry: Entry, other: Entry) -> bool:
    """Whether the backend runs both, one after the other."""
    if entry.log is not other.log:
        return False
    devices = {buffer.device for buffer in (*entry.call.inputs, *entry.call.outputs)}
    backends = [backend for device in devices if (backend := entry.log.backend(device)) is not None]
    return all(backend.in_order for backend in backends)


_counts: WeakKeyDictionary[Recorder, Counter[tuple[object, ...]]] = WeakKeyDictionary()


def _report_change(entry: Entry, known: bool) -> None:
    noticed = None if known else current_source()
    _write(
        entry,
        "changed",
        (entry.source, known, noticed),
        known=known,
        noticed=None if noticed is None else source_document(noticed),
    )


def _report_overlap(entry: Entry, other: Flight, both: bool) -> None:
    first = other.entry
    running = other.running
    _write(
        entry,
        "overlap",
        (entry.source, first.source, both, running),
        both_write=both,
        running=running,
        other={
            "group": first.log.group.name,
            "sequence": first.sequence,
            "op": first.call.op,
            "source": source_document(first.source),
        },
    )


def _write(entry: Entry, kind: str, key: tuple[object, ...], **data: object) -> None:
    """Write the first of a kind down, and then each time that they have doubled: a loop must not fill the box."""
    counts = _counts.setdefault(entry.log.recorder, Counter())
    counts[kind, *key] += 1
    count = counts[kind, *key]
    if count & (count - 1) == 0:
        entry.log.recorder.event(
            kind,
            group=entry.log.group.name,
            sequence=entry.sequence,
            op=entry.call.op,
            count=count,
            source=source_document(entry.source),
            **data,
        )


def watches(arguments: Arguments) -> bool:
    """Whether a call returns before its end: it says so, or is a send or receive, which never say."""
    return arguments.asynchronous or arguments.spec.kind is Kind.POINT_TO_POINT
