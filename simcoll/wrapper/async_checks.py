"""Watches the memory of asynchronous calls until they have been waited for: SC502, SC503, and half of SC501.

A call is *open* from the moment when it is made until its end has been observed. A backend may have finished it long
before; but a program that has not waited for anything since may not rely on that. Where it has waited for something
else (a barrier, an answer), which may imply the end of this call, only a call that is still running counts.

Only calls whose Work the program holds are watched. Calls that torch makes for itself (DistributedDataParallel,
functional collectives, pipelines) are waited for in ways of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from simcoll.core.rank_local import ProcessOwned, RankLocal
from simcoll.cuda.launch_order import LAUNCHES
from simcoll.recorder.arguments import Arguments
from simcoll.recorder.failures import report_change, report_overlap
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Entry
from simcoll.recorder.source import made_by_torch
from simcoll.spec.table import Kind
from simcoll.wrapper.later_names import named_later

_MOST_TENSORS = 64
"""Tensors of a call beyond which its memory is not watched."""

_MOST_BYTES = 1 << 26
"""Bytes of a part of a storage beyond which its contents are not compared."""

_PLAIN = torch.Tensor.__torch_dispatch__
"""The method that a tensor subclass overrides if it only wraps other tensors."""


class Region(NamedTuple):
    """The bytes ``start`` to ``end`` of a storage that a tensor spans; ``dense`` says that it uses all of them.

    ``layout`` tells tensors apart that use other bytes of one span. A storage is named by its address in C++, which is
    its own as long as anybody holds it. A tuple, because one is made for each tensor of each asynchronous call.
    """

    storage: int
    start: int
    end: int
    dense: bool
    layout: tuple[object, ...]
    writes: bool

    def overlaps(self, other: Region) -> bool:
        """True if both use a byte that one of them writes; False where that is not known."""
        if self.storage != other.storage or not (self.writes or other.writes):
            return False
        if self.dense and other.dense:
            return self.start < other.end and other.start < self.end
        # Interleaved columns share their span and no byte; only the very same ones are sure to.
        return self.layout == other.layout


def has_memory(tensor: torch.Tensor) -> bool:
    """True for a tensor that lies in a storage of its own kind, and has elements there."""
    if type(tensor) is not torch.Tensor and type(tensor).__torch_dispatch__ is not _PLAIN:
        return False
    return tensor.layout is torch.strided and tensor.numel() > 0


def region_of(tensor: torch.Tensor, storage: int, *, writes: bool) -> Region:
    """The region of a tensor that has memory; ``storage`` is the address of its storage."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.is_contiguous():
        return Region(storage, start, start + tensor.numel() * size, True, (), writes)
    layout = (start, tensor.shape, tensor.stride(), size)
    return Region(storage, start, start + _span(tensor) * size, False, layout, writes)


def _span(tensor: torch.Tensor) -> int:
    return 1 + int(sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)))


class Watched(NamedTuple):
    """A tensor that fills its storage, so that its version counter speaks for it alone."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    shape: torch.Size
    address: int

    def changed(self) -> bool:
        """True if the tensor was written to since; False for one with another shape or memory, which shows nothing."""
        tensor = self.tensor()
        if tensor is None or tensor._version == self.version:
            return False
        return tensor.shape == self.shape and tensor.data_ptr() == self.address


class Part(NamedTuple):
    """A part of a storage that a call sends. Versions speak for the whole storage, so contents are compared.

    ``receives`` says that the result arrives there too: contents then say nothing once the call was launched.
    """

    storage: torch.UntypedStorage
    """Held, so that nobody else gets its memory."""
    extent: tuple[int, int]
    """The storage's address and size: the program may resize it."""
    address: int
    size: int
    contents: tuple[int, bytes]
    receives: bool

    def changed(self) -> bool:
        """True if other bytes are there now; False for a storage that has been resized, which shows nothing."""
        return _extent(self.storage) == self.extent and _contents(self.address, self.size) != self.contents


def _extent(storage: torch.UntypedStorage) -> tuple[int, int]:
    return storage.data_ptr(), storage.nbytes()


def _contents(address: int, size: int) -> tuple[int, bytes]:
    """Returns the sum of the words of some bytes, and the rest; no dispatch mode of the program sees it."""
    data = memoryview((ctypes.c_ubyte * size).from_address(address))
    whole = size - size % 8
    return int(np.frombuffer(data[:whole], np.uint64).sum(dtype=np.uint64)), bytes(data[whole:])


class Memory(NamedTuple):
    """The memory that a call uses: regions, tensors in which its result arrives, memory watched for writes."""

    regions: list[Region]
    written: list[weakref.ref[torch.Tensor]]
    watched: list[Watched]
    parts: list[Part]


def memory_of(
    tensors: Mapping[str, Sequence[torch.Tensor]], *, writes: bool, sends: bool, parts: bool = False
) -> Memory:
    """Returns the memory that a call uses of its tensors, by role; none for a call with very many.

    ``writes`` says that its result arrives in them, ``sends`` that a write to an input while it runs can be seen and
    matters; ``parts`` has it seen in parts of storages as well.
    """
    memory = Memory([], [], [], [])
    if sum(map(len, tensors.values())) > _MOST_TENSORS:
        return memory
    outputs: set[int] = set()
    for role, of_role in tensors.items():
        written = writes and role != "inputs"
        for tensor in of_role:
            if not has_memory(tensor):
                continue
            storage = tensor.untyped_storage()
            address = storage._cdata
            memory.regions.append(region_of(tensor, address, writes=written))
            if written:
                memory.written.append(weakref.ref(tensor))
            # A backend may count up the version of a pure output at any time.
            if role == "outputs":
                outputs.add(address)
            elif sends and address not in outputs:
                if _fills(tensor, storage):
                    watched = Watched(weakref.ref(tensor), tensor._version, tensor.shape, tensor.data_ptr())
                    memory.watched.append(watched)
                elif parts and tensor.is_cpu and tensor.is_contiguous() and tensor.nbytes <= _MOST_BYTES:
                    place, size = tensor.data_ptr(), tensor.nbytes
                    part = Part(storage, _extent(storage), place, size, _contents(place, size), written)
                    memory.parts.append(part)
    return memory


def _fills(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    return tensor.nbytes == storage.nbytes() and not tensor.is_inference()


T = TypeVar("T")

_MOST_ORPHANS = 4096
"""Calls whose Work was dropped that are remembered; of older ones the program holds the result."""

_OUTLIVED_SECONDS = 0.05
"""A result that is still there so long after its Work was dropped is held by the program."""


class FlightEnd(Protocol):
    """A Work that can be asked whether the call has ended."""

    def has_ended(self) -> bool:
        """True if the call has ended."""
        ...


class Flight:
    """One call that is open."""

    __slots__ = (
        "_flights",
        "_named_later",
        "_parts",
        "_queued",
        "_watched",
        "_work",
        "_written",
        "entry",
        "overlapped",
        "regions",
        "shared",
        "since",
    )

    def __init__(self, flights: Flights, entry: Entry, memory: Memory) -> None:
        self.entry = entry
        self.regions = memory.regions
        self.since = flights.waits
        self.shared = False
        self.overlapped = False
        self._work: Callable[[], FlightEnd | None] = _nothing
        self._queued = False
        self._written = memory.written
        self._named_later = bool(memory.written) and named_later(memory.written)
        self._watched = memory.watched
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
        self.entry.let_go()
        self._flights.orphaned(self.entry, self._written, named_later=self._named_later)
        self.end()

    def launching(self, launch: Callable[[], T]) -> Callable[[], T]:
        """``launch``, for a call that is launched later than it was made: its inputs may have changed."""

        def launched() -> T:
            self._check_before_it_runs()
            self._queued = False
            return launch()

        self._queued = True
        return launched

    def runs(self) -> None:
        """Note that a backend that runs it later than its launch runs it now: its inputs may have changed."""
        self._check_before_it_runs()

    def awaited(self) -> None:
        """Note that a thread begins to wait for it: the last moment at which a write to its buffers can be seen."""
        self.looked_at()
        self.end()

    def looked_at(self) -> None:
        """Note that a thread waits for it, and may give up: a write to its buffers so far can be seen."""
        if self.open:
            # The worker may launch it meanwhile.
            self._check(known=self._queued, parts=[part for part in self._parts if not part.receives])

    def end(self) -> None:
        """Watch it no more."""
        self._watched, self._parts = [], []
        self._flights.remove(self)

    def _check_before_it_runs(self) -> None:
        self._check(known=True, parts=self._parts)
        self._parts = [part for part in self._parts if not part.receives]

    def _check(self, *, known: bool, parts: Sequence[Part]) -> None:
        changed = not self.shared and any(watched.changed() for watched in self._watched)
        if changed or (not self.overlapped and any(part.changed() for part in parts)):
            self._watched, self._parts = [], []
            report_change(self.entry, known=known)


@dataclass(frozen=True, slots=True, eq=False)
class _Orphan:
    """A call whose Work is gone, the memory of its result, and the time at which it went."""

    entry: Entry
    storages: tuple[StorageWeakRef, ...]
    since: float
    waits: int
    named_later: bool


class Flights(ProcessOwned):
    """The open calls of this process, by the memory that they use."""

    def __init__(self) -> None:
        self._begin()
        super().__init__()

    def _begin(self) -> None:
        self.waits = 0
        """The number of waits for the end of a call; it only has to differ."""
        self._by_storage: dict[int, list[Flight]] = {}
        self._lock = threading.RLock()
        self._orphans: deque[_Orphan] = deque(maxlen=_MOST_ORPHANS)
        self._looked = 0.0

    def forked(self) -> None:
        """The calls are the parent's; a Work that the child drops finds none, and a lock that is free."""
        self._begin()

    def open(self, entry: Entry, arguments: Arguments, *, parts: bool = False) -> Flight | None:
        """Note that a call was made whose Work goes to the program; None where there is no memory to watch.

        ``parts`` has writes seen in parts of storages too, which costs two looks at the sent data.
        """
        self.look_after()
        memory = _memory(entry, arguments, parts=parts)
        if not memory.regions:
            return None
        flight = Flight(self, entry, memory)
        if self._by_storage:
            self._meet(entry, memory.regions, flight)
        with self._lock:
            for storage in {region.storage for region in memory.regions}:
                self._by_storage.setdefault(storage, []).append(flight)
        return flight

    def pass_by(self, entry: Entry, arguments: Arguments) -> None:
        """Note a call that cannot be left open; costs nothing while none is open."""
        if self._orphans:
            self.look_after()
        if self._by_storage and (regions := _memory(entry, arguments).regions):
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
        if not last and now - self._looked < _OUTLIVED_SECONDS:
            return
        self._looked = now
        if last and orphans:
            self.waits += 1
            time.sleep(max(0.0, orphans[-1].since + _OUTLIVED_SECONDS - time.monotonic()))
        for orphan in orphans:
            gone = all(storage.expired() for storage in orphan.storages)
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
            if overlaps and other.open and not _in_order(entry, other.entry) and not made_by_torch():
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


def _memory(entry: Entry, arguments: Arguments, *, parts: bool = False) -> Memory:
    """Returns the memory of a call; none where a tensor's kind does not state it: a call must not fail for that."""
    use = entry.use
    try:
        return memory_of(arguments.tensors, writes=use.writes, sends=use.sends and not use.copies, parts=parts)
    except (RuntimeError, TypeError, AttributeError):
        return Memory([], [], [], [])


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
