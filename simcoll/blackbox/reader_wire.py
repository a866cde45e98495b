"""The wire format of a reading process's results: pickles with their arrays sent out of band, and shared values once.

Groups, calls and lines are the same in thousands of files. Each is sent when it is first seen, and a number stands for
it from then on; a receiver of several processes' results keeps one object of each value.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO, RawIOBase
from struct import Struct
from typing import Any

import numpy as np

from simcoll.blackbox import BlackBox
from simcoll.blackbox.ring_reader import SLOT_DTYPE
from simcoll.blackbox.table import CommonData, KnownEntries, Together
from simcoll.core.record import Event, Group, Members, Source
from simcoll.core.steps import StepMarks
from simcoll.core.trace import SlotTimes
from simcoll.errors import UnreadableError
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.flight_recorder.dump import Dump, DumpGroup

SHARED = frozenset({Group, Call, Source, DumpGroup, CommonData, Together, type(SLOT_DTYPE)})
"""Types whose values are sent once."""

_HEAD = Struct("<QQQ")
_SIZE = Struct("<Q")
_SENT = (*SHARED, BlackBox, Buffer, Dump, Event, Members, SlotTimes, StepMarks, UnreadableError, frozenset)
_TYPES = {(one.__module__, one.__qualname__): one for one in _SENT}
_OF_ARRAYS = frozenset({"dtype", "ndarray", "scalar", "_frombuffer", "_reconstruct"})


@dataclass(slots=True)
class Sender:
    """Writes values to a pipe."""

    pipe: RawIOBase | BytesIO
    _numbers: dict[object, int] = field(default_factory=dict)
    _seen: dict[int, tuple[int, object]] = field(default_factory=dict)

    def send(self, value: object) -> None:
        """Write one value; raises OSError where the receiver has closed its end."""
        fresh: list[object] = []
        buffers: list[pickle.PickleBuffer] = []
        stream = BytesIO()
        _Pickler(stream, self, fresh, buffers).dump(value)
        shared = pickle.dumps(fresh, 5) if fresh else b""
        raws = [buffer.raw() for buffer in buffers]
        sizes = b"".join(_SIZE.pack(raw.nbytes) for raw in raws)
        body = stream.getbuffer()
        head = _HEAD.pack(len(shared), len(body), len(raws)) + sizes + shared
        for part in (memoryview(head), body, *raws):
            _write(self.pipe, part)

    def number(self, value: object, fresh: list[object]) -> int:
        """The number that stands for a shared value; one that was not sent before is put with the fresh ones."""
        known = self._seen.get(id(value))
        if known is not None:
            return known[0]
        sent: object = value
        if type(value) is Together:
            # As the numbers of its values: a list, which no shared value is.
            sent = [self.number(one, fresh) for one in value]
        key = tuple(sent) if isinstance(sent, list) else _key(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            # An address identifies a value only while it is kept here.
            self._seen[id(value)] = number, value
            fresh.append(sent)
        return number


class _Pickler(pickle.Pickler):
    def __init__(
        self, stream: BytesIO, sender: Sender, fresh: list[object], buffers: list[pickle.PickleBuffer]
    ) -> None:
        super().__init__(stream, 5, buffer_callback=lambda buffer: buffers.append(buffer))
        self._sender, self._fresh = sender, fresh

    def persistent_id(self, obj: object) -> int | None:
        return self._sender.number(obj, self._fresh) if type(obj) in SHARED else None


@dataclass(slots=True)
class Receiver:
    """Reads what a :class:`Sender` wrote; ``kept`` holds one object of each shared value, whichever process sent it."""

    pipe: RawIOBase | BytesIO
    kept: dict[object, object]
    _shared: list[object] = field(default_factory=list)

    def receive(self) -> object:
        """Read one value; raises EOFError or UnpicklingError where it does not come whole."""
        fresh, body, buffers = _HEAD.unpack(_read(self.pipe, _HEAD.size))
        sizes = [_SIZE.unpack(_read(self.pipe, _SIZE.size))[0] for _ in range(buffers)]
        if fresh:
            for value in _Unpickler(_read(self.pipe, fresh), [], iter(())).load():
                self._shared.append(self._together(value) if type(value) is list else self._kept(_key(value), value))
        data = _read(self.pipe, body)
        arrays = [_read(self.pipe, size) for size in sizes]
        return _Unpickler(data, self._shared, iter(arrays)).load()

    def _kept(self, key: object, value: object) -> object:
        return self.kept.setdefault(key, value)

    def _together(self, numbers: list[int]) -> object:
        """Shared values in order, one object where they are the same: these are kept, so that their addresses tell."""
        values = Together(self._shared[number] for number in numbers)
        return self._kept((Together, *map(id, values)), values)


def kept_of(known: KnownEntries) -> dict[object, object]:
    """What a :class:`Receiver` is to keep where this process has read files itself: a group of thousands of ranks that
    is there twice is compared rank by rank, thousands of times.
    """
    values = (*known.groups.values(), *known.signatures.values(), *known.sources.values())
    return {_key(value): value for value in values}


class _Unpickler(pickle.Unpickler):
    """Unpickles only the types that readers send and numpy's arrays: the files that were read may be anybody's."""

    def __init__(self, data: memoryview, shared: list[object], buffers: Iterator[object]) -> None:
        super().__init__(BytesIO(data), buffers=buffers)
        self._shared = shared

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _TYPES:
            return _TYPES[module, name]
        if module.partition(".")[0] == "numpy" and name in _OF_ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]


def _key(value: object) -> object:
    """The key by which shared values are told apart: lines are equal whatever their callers are."""
    return (value, value.callers, value.through) if isinstance(value, Source) else value


def _write(pipe: RawIOBase | BytesIO, view: memoryview) -> None:
    view = view.cast("B")
    while view:
        view = view[pipe.write(view) or 0 :]


def _read(pipe: RawIOBase | BytesIO, size: int) -> memoryview:
    """So many bytes; raises EOFError where they end before."""
    data = view = np.empty(size, np.uint8).data
    while view:
        count = pipe.readinto(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data
