"""Flight Recorder dumps of torch, pickle or JSON, as traces. ``docs/flight-recorder.md`` describes them.

:func:`read_dump` reads one file, :func:`traces_of` puts the files of a job together. Reading never trusts: nothing is
unpickled or evaluated, memory is bounded, and damaged parts are left out and named.

A pickle is read opcode by opcode, JSON value by value, and each entry is dropped once its row is made. Entries that
differ from an earlier one only in numbers at fixed places are read as columns of bytes. Fields that a backend leaves
open, such as the calls of a coalesced group or the numbers that a batch took, are inferred from the columns.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from simcoll.core.io import opened_record
from simcoll.errors import UnreadableError
from simcoll.verifier.flight_recorder.dump import Dump, assemble
from simcoll.verifier.flight_recorder.entries import ENTRY_LIMIT, EntryColumns
from simcoll.verifier.flight_recorder.jobs import traces_of
from simcoll.verifier.flight_recorder.json_reader import JsonStream
from simcoll.verifier.flight_recorder.pickle_machine import (
    ENTRIES,
    CutError,
    ForgottenError,
    PickleStream,
    UnsafeDumpError,
)
from simcoll.verifier.flight_recorder.pickle_reader import Follower, read_pickle

__all__ = ["SIZE_LIMIT", "Dump", "UnreadableError", "looks_like_dump", "read_dump", "traces_of"]

SIZE_LIMIT: Final = 256 << 20
"""Bytes of the largest file that is read; a ring of a million entries takes about 150 MB."""

_WIDE_LIMIT: Final = 64 << 20
"""The same for JSON that is not ASCII, which takes four times its size in memory."""
_BOM = b"\xef\xbb\xbf"


def looks_like_dump(head: bytes) -> bool:
    """True if a file that begins like this may be a Flight Recorder dump: a pickle, or JSON with an object."""
    return _is_json(head) or head[:1] in (b"\x80", b"(", b"}")


def read_dump(path: str | Path) -> Dump:
    """Read one dump, whole or cut; raises :class:`UnreadableError` where nothing can be read, and nothing else."""
    name = str(path)
    data, written_ns = _contents(name)
    if not looks_like_dump(data[:4096]):
        raise UnreadableError(f"{name}: is no Flight Recorder dump: it is neither a pickle nor a JSON object")
    columns = EntryColumns()
    try:
        found, problem = _json(data, columns) if _is_json(data[:4096]) else _pickle(data, columns)
    except ForgottenError:
        columns = EntryColumns()
        found, problem = _pickle(data, columns, together=False)
    if problem is not None and not columns.count:
        raise UnreadableError(f"{name}: cannot be read as a Flight Recorder dump: {problem}")
    if not columns.count and not _is_dump(found):
        raise UnreadableError(f"{name}: is no Flight Recorder dump: it has neither entries nor a version")
    problems = [] if problem is None else [f"{problem}; the {columns.count} entries before it were read"]
    return assemble(name, found, columns, written_ns, problems)


def _contents(name: str) -> tuple[bytes, int]:
    with opened_record(name, "a dump") as fd:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise UnreadableError(f"{name}: is no regular file; give a dump")
        if about.st_size > SIZE_LIMIT:
            raise UnreadableError(f"{name}: has {about.st_size} bytes, more than the {SIZE_LIMIT} that are read")
        with open(fd, "rb", closefd=False) as file:
            return file.read(SIZE_LIMIT), about.st_mtime_ns


def _is_json(head: bytes) -> bool:
    start = head.removeprefix(_BOM).lstrip(b" \t\r\n")[:2]
    return start[:1] == b"{" and start[1:] in (b"", b'"', b"}", b" ", b"\n", b"\r", b"\t")


def _pickle(data: bytes, columns: EntryColumns, *, together: bool = True) -> tuple[Mapping[object, object], str | None]:
    stream = PickleStream(data, Follower(columns, data) if together else Follower(columns, data, ENTRY_LIMIT))
    try:
        whole = read_pickle(stream)
    except CutError:
        return stream.salvage(), f"the file ends before the dump does, after {len(data)} bytes"
    except UnsafeDumpError as error:
        return stream.salvage(), f"at byte {stream.at}, {error}"
    if not isinstance(whole, dict):
        return {}, "it holds no dict"
    try:
        _leftover(whole, columns)
    except UnsafeDumpError as error:
        return whole, str(error)
    return whole, None


def _leftover(whole: dict[object, object], columns: EntryColumns) -> None:
    """Entries that some other program wrote in an order of its own."""
    entries = whole.pop(ENTRIES, None)
    for entry in entries if isinstance(entries, (list, tuple)) else ():
        columns.take(entry if isinstance(entry, dict) else {})


def _json(data: bytes, columns: EntryColumns) -> tuple[Mapping[object, object], str | None]:
    if len(data) > _WIDE_LIMIT and not data.isascii():
        return {}, f"it has {len(data)} bytes, more than the {_WIDE_LIMIT} that are read of JSON that is not ASCII"
    stream = JsonStream(data.removeprefix(_BOM).decode("utf-8", "replace"), columns.take)
    try:
        stream.read()
    except CutError:
        return stream.found, f"the file ends before the dump does, after {len(data)} bytes"
    except UnsafeDumpError as error:
        return stream.found, str(error)
    return stream.found, None


def _is_dump(found: Mapping[object, object]) -> bool:
    return isinstance(found.get("version"), str) and ("pg_config" in found or "pg_status" in found or ENTRIES in found)
