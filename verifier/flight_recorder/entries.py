"""The entries of a Flight Recorder dump as columns: each distinct call, line and group once, the rest as numbers.

An entry is checked field by field, whatever version of torch wrote it; ``docs/flight-recorder.md`` tells the versions
apart. An invalid entry is counted; the module ``dump`` decides which others it makes unusable.

:class:`Frames` finds the line of the user's program in an entry's frames, which another machine wrote. It follows the
rule of :mod:`simcoll.recorder.source`, by the shape of the paths: frames of torch, of simcoll, of Python's library and
of C++ are passed over; installed packages count where no frame of the user's own code is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcoll.core.record import UNKNOWN_SOURCE, Source, State
from simcoll.core.source_roots import INSTALLED, OWN, SKIP, line_of_stack
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import CollectiveSpec, Kind, Rooted
from simcoll.verifier.flight_recorder.pickle_machine import UnsafeDumpError

_FILE_LIMIT: Final = 1 << 16
_PATH_LIMIT: Final = 4096
_FRAME_LIMIT: Final = 1 << 25
"""Frames that are looked at in one dump: in a pickle, all entries can share one list of any length."""
_PACKAGES: Final = ("/site-packages/", "/dist-packages/")
_PASSED_OVER: Final = re.compile(r"/(site|dist)-packages/(torch|simcoll)/|^<|\.(cpp|cc|cxx|c|cu|h|hpp|so[.\d]*)$|^\?*$")
_LIBRARY: Final = re.compile(r"/lib(64)?/python\d[.\d]*/")
_TORCHS: Final = re.compile(r"(.*/torch/)distributed/(distributed_c10d|c10d_logger)\.py")
_SIMCOLLS: Final = re.compile(r"(.*/)simcoll/wrapper/process_group\.py")
_SIDE_BY_SIDE: Final = ("simcoll", "verifier", "backends", "reports")
"""Folders of simcoll in a checkout."""


class Frames:
    """Finds source lines; the kind of file that a path names is decided once."""

    def __init__(self) -> None:
        self._kinds: dict[str, int] = {}
        self._known: dict[Source, Source] = {}
        self._passed: tuple[str, ...] = ()
        self._left = _FRAME_LIMIT

    def source(self, frames: object) -> Source:
        """The innermost line of the user's own code with its callers; frames are given innermost first."""
        return line_of_stack(self._of_program(frames))

    def _of_program(self, frames: object) -> Iterator[tuple[int, Source]]:
        for frame in islice(frames, self._left) if isinstance(frames, (list, tuple)) else ():
            self._left -= 1
            file = frame.get("filename") if isinstance(frame, dict) else None
            kind = self._kind(file) if isinstance(file, str) and len(file) <= _PATH_LIMIT else SKIP
            if kind != SKIP:
                source = _source(frame)
                yield kind, self._known.setdefault(source, source) if len(self._known) < _FILE_LIMIT else source

    def _kind(self, file: str) -> int:
        kind = self._kinds.get(file)
        if kind is None:
            kind = self._look(file)
            if len(self._kinds) < _FILE_LIMIT:
                self._kinds[file] = kind
        return kind

    def _look(self, file: str) -> int:
        if (torchs := _TORCHS.fullmatch(file)) is not None:
            self._passed = (*self._passed[:31], torchs[1])
        if (own := _SIMCOLLS.fullmatch(file)) is not None:
            self._passed = (*self._passed[:28], *(f"{own[1]}{name}/" for name in _SIDE_BY_SIDE))
        if _PASSED_OVER.search(file) is not None or file.startswith(self._passed):
            return SKIP
        if any(packages in file for packages in _PACKAGES):
            return INSTALLED
        return SKIP if _LIBRARY.search(file) is not None else OWN


def _source(frame: dict[object, object]) -> Source:
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    return Source(
        file if isinstance(file, str) else "",
        line if type(line) is int and 0 <= line < 1 << 31 else 0,
        name[:_PATH_LIMIT] if isinstance(name, str) else "",
    )


ROW: Final = np.dtype(
    [
        ("record", "<i8"),
        ("sequence", "<i8"),
        ("p2p_sequence", "<i8"),
        ("operation", "<i8"),
        ("scheduled_ns", "<i8"),
        ("started_ns", "<i8"),
        ("finished_ns", "<i8"),
        ("group", "<u4"),
        ("call", "<u4"),
        ("source", "<u4"),
        ("state", "u1"),
        ("p2p", "?"),
        ("retired", "?"),
        ("sound", "?"),
    ]
)
"""One entry; group, call and source index the tables of :class:`EntryColumns`."""

Rows = npt.NDArray[Any]

NUMBERED: Final = {
    "record_id": "record",
    "collective_seq_id": "sequence",
    "seq_id": "sequence",
    "p2p_seq_id": "p2p_sequence",
    "op_id": "operation",
    "time_created_ns": "scheduled_ns",
    "time_discovered_started_ns": "started_ns",
    "time_discovered_completed_ns": "finished_ns",
}
"""The fields of an entry that are a number each, by the column that takes them."""

_COUNTED: Final = frozenset({"collective_seq_id", "seq_id"})
"""Either of these says where among its group's calls an entry stands."""

_NUMBERS: Final = tuple(dict.fromkeys(NUMBERED.values()))
_NO_SENSE: Final = (*(0 for _ in _NUMBERS), 0, 0, 0, 0, False, False, False)

UNREAD: Final = frozenset({"duration_ms", "thread_id"})
"""Fields that differ from entry to entry and that nobody reads."""

ENTRY_LIMIT: Final = 1 << 20
"""Entries of one dump; torch's ring holds 2,000 where nobody sets another size."""
CALL_LIMIT: Final = 1 << 18
"""Distinct calls of one dump, and distinct lines; a million buffers in all of them."""
_BUFFER_LIMIT: Final = 1 << 20
_LOOKED_LIMIT: Final = 1 << 24
"""Buffers and dimensions of all entries that are looked at: in a pickle, they can share a list of any length."""
_GROUP_LIMIT: Final = 1 << 14
_LARGEST: Final = (1 << 63) - 1
_NAME_LIMIT: Final = 1024
_TENSORS: Final = 1 << 14
_DIMENSIONS: Final = 64
_PLACEHOLDER: Final = "Undefined"
"""The dtype of a tensor that stands where a rank that is not the root has none."""
_DEVICE: Final = ""
"""No dump states the devices of its buffers."""
_PEERS: Final = re.compile(r"(\d{1,7})(->|<-)(\d{1,7})")
_DTYPES: Final = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""Names of c10's ScalarType where torch's name is not the same word in lower case."""

_DTYPE: Final = re.compile(r"(?:(?:Q?U?Int|Bits|B?Float|Complex)\d\w{0,20}|Bool|Undefined)", re.IGNORECASE)
"""The other names, those of types to come included; a word that is none of them was damaged."""

_PROFILED: Final = {name: spec for spec in COLLECTIVES.values() for name in (spec.name, *spec.profiling)}


class MalformedEntryError(ValueError):
    """An entry of a dump lacks a field that every entry has."""


class EntryColumns:
    """The tables that entries refer to, filled as they come.

    ``groups`` holds descriptions by name: a group that is destroyed and made again under its old name counts from 1
    again, whatever it is called besides. ``backends`` holds the backend that each call was profiled for.
    """

    def __init__(self) -> None:
        self.groups: dict[str, str] = {}
        self.calls: list[Call] = []
        self.backends: list[str] = []
        self.count = 0
        self._places: dict[str, int] = {}
        self._pieces: list[Rows] = []
        self._pending: list[tuple[object, ...]] = []
        self._calls: dict[object, int] = {}
        self._frames = Frames()
        self._buffers = self._looked = 0
        self._sources: dict[tuple[Source, ...], int] = {(UNKNOWN_SOURCE,): 0}
        self._lines = [UNKNOWN_SOURCE]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The lines of the user's program, by index."""
        return tuple(self._lines)

    def rows(self) -> Rows:
        """All entries so far, in order."""
        self._flush()
        return np.concatenate([np.zeros(0, ROW), *self._pieces])

    def last(self) -> Rows:
        """The entry that was taken last, as a row."""
        return np.array(self._pending[-1:], ROW)

    def add(self, rows: Rows) -> None:
        """Take in entries whose columns are known."""
        self._flush()
        self._pieces.append(rows)
        self._counted(len(rows))

    def take(self, entry: dict[object, object]) -> bool:
        """Take in one entry; returns False for an invalid one."""
        self._counted(1)
        try:
            self._pending.append(self._row(entry))
        except MalformedEntryError:
            self._pending.append(_NO_SENSE)
            return False
        return True

    def _counted(self, more: int) -> None:
        self.count += more
        if self.count > ENTRY_LIMIT:
            raise UnsafeDumpError(f"it has more than {ENTRY_LIMIT} entries")

    def _flush(self) -> None:
        if self._pending:
            self._pieces.append(np.array(self._pending, ROW))
            self._pending = []

    def _row(self, entry: dict[object, object]) -> tuple[object, ...]:
        if entry.keys().isdisjoint(_COUNTED):
            raise MalformedEntryError("collective_seq_id")
        numbers = dict.fromkeys(_NUMBERS, 0)
        for name, column in NUMBERED.items():
            if name in entry:
                numbers[column] = _number(entry[name], name)
        call = self._call(entry)
        source = self._source(entry)
        state = _state(entry.get("state"), numbers)
        p2p = entry.get("is_p2p") is True or self._is_message(self.calls[call])
        return *numbers.values(), self._group(entry), call, source, state, p2p, entry.get("retired") is True, True

    def _source(self, entry: dict[object, object]) -> int:
        source = self._frames.source(entry.get("frames"))
        stack = source.stack
        if len(self._lines) >= CALL_LIMIT:
            return self._sources.get(stack, 0)
        index = self._sources.setdefault(stack, len(self._lines))
        if index == len(self._lines):
            self._lines.append(source)
        return index

    def _is_message(self, call: Call) -> bool:
        spec = COLLECTIVES.get(call.op)
        return spec is not None and spec.kind is Kind.POINT_TO_POINT

    def _group(self, entry: dict[object, object]) -> int:
        group = entry.get("process_group", entry.get("pg_name"))
        if isinstance(group, (tuple, list)) and 1 <= len(group) <= 2 and all(type(part) is str for part in group):
            name, description = group[0], group[-1] if len(group) == 2 else ""
        elif type(group) is str:
            name, description = group, ""
        else:
            raise MalformedEntryError("process_group")
        if len(self.groups) >= _GROUP_LIMIT:
            raise UnsafeDumpError("it has more groups than any job")
        self.groups.setdefault(name[:_NAME_LIMIT], description[:_NAME_LIMIT])
        return self._places.setdefault(name[:_NAME_LIMIT], len(self._places))

    def _call(self, entry: dict[object, object]) -> int:
        name = entry.get("profiling_name")
        if type(name) is not str or not 0 < len(name) <= _NAME_LIMIT:
            raise MalformedEntryError("profiling_name")
        inputs = _buffers(entry, "input")
        outputs = _buffers(entry, "output")
        self._looked += sum(1 + len(buffer.shape) for buffer in (*inputs, *outputs))
        if self._looked > _LOOKED_LIMIT:
            raise UnsafeDumpError("its entries have more tensors than any program's")
        key = name, inputs, outputs
        index = self._calls.get(key)
        if index is None:
            self._buffers += len(inputs) + len(outputs)
            if len(self.calls) >= CALL_LIMIT or self._buffers > _BUFFER_LIMIT:
                raise UnsafeDumpError("it has more distinct calls than any program makes")
            backend, call = call_of(name, inputs, outputs)
            index = self._calls[key] = len(self.calls)
            self.calls.append(call)
            self.backends.append(backend)
        return index


def call_of(name: str, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> tuple[str, Call]:
    """The backend and the call that a profiling name such as ``nccl:all_reduce`` or ``nccl:send 0->1`` states."""
    backend, _, title = name.rpartition(":")
    title, _, ends = title.partition(" ")
    spec = _PROFILED.get(title)
    if spec is None:
        return backend, Call(title or name, title or name, inputs, outputs)
    if spec.in_place and inputs and outputs and inputs != outputs:
        raise MalformedEntryError(f"{name} has one buffer, and its sizes or dtypes differ before and after")
    if spec.kind is Kind.POINT_TO_POINT:
        return backend, _message(spec, title, ends, inputs, outputs)
    if spec.rooted is Rooted.FROM_ROOT and "root" in spec.law_reads and len(inputs) == 1 != len(outputs):
        # NCCL has one form for all collectives, which takes a scatter's result first, and then the root's list.
        inputs, outputs = outputs, inputs
    return backend, Call(spec.name, title, inputs, outputs, coalesced=_is_list(spec, inputs, outputs))


def _message(
    spec: CollectiveSpec, title: str, ends: str, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]
) -> Call:
    peers = _PEERS.fullmatch(ends)
    peer = None if peers is None else int(peers[3])
    # A message has one buffer; Flight Recorder lists it as input and as output.
    only = (inputs if spec.measured == "inputs" else outputs) or inputs or outputs
    if spec.measured == "inputs":
        return Call(spec.name, title, inputs=only[:1], peer=peer)
    return Call(spec.name, title, outputs=only[:1], peer=peer)


def _is_list(spec: CollectiveSpec, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> bool:
    """True if one call carries several independent tensors."""
    measured = inputs if spec.measured == "inputs" else outputs
    return len(measured) > 1 and any(method.coalesced for method in spec.methods)


def _number(value: object, name: str) -> int:
    if value is None:
        return 0
    if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
        raise MalformedEntryError(name)
    return value


def _state(value: object, row: Mapping[str, int]) -> State:
    if value is None:
        ended, started = row["finished_ns"] > 0, row["started_ns"] > 0
        return State.COMPLETED if ended else State.STARTED if started else State.SCHEDULED
    for state in (State.SCHEDULED, State.STARTED, State.COMPLETED):
        if value == state.name.lower():
            return state
    raise MalformedEntryError("state")


def _buffers(entry: dict[object, object], side: str) -> tuple[Buffer, ...]:
    sizes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(sizes, (list, tuple)) or not isinstance(dtypes, (list, tuple)) or len(sizes) > _TENSORS:
        raise MalformedEntryError(f"{side}_sizes")
    if len(sizes) != len(dtypes):
        raise MalformedEntryError(f"{side}_dtypes")
    pairs = [pair for pair in zip(sizes, dtypes, strict=True) if pair[1] != _PLACEHOLDER]
    return tuple(Buffer(_shape(shape), _dtype(dtype), _DEVICE) for shape, dtype in pairs)


def _shape(value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _DIMENSIONS:
        raise MalformedEntryError("sizes")
    if not all(type(size) is int and 0 <= size <= _LARGEST for size in value):
        raise MalformedEntryError("sizes")
    return tuple(value)


def _dtype(value: object) -> str:
    if type(value) is not str or (value not in _DTYPES and _DTYPE.fullmatch(value) is None):
        raise MalformedEntryError("dtypes")
    return _DTYPES.get(value, value.lower())
