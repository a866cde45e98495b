"""Reads one record file, of either kind: a black box if it begins with the magic, else a Flight Recorder dump."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeAlias

from simcoll.blackbox import BlackBox
from simcoll.blackbox import format as layout
from simcoll.blackbox.format import SUFFIX
from simcoll.blackbox.reader import read_alike, read_open_box
from simcoll.blackbox.table import KnownEntries
from simcoll.core.io import opened_record
from simcoll.errors import UnreadableError
from simcoll.verifier.flight_recorder import Dump, looks_like_dump, read_dump

RecordFile: TypeAlias = "BlackBox | Dump"

DUMPS: Final = "flight_recorder_rank_"
"""The prefix of the names of torch's dumps in the folder of a job; torch appends the rank."""

_HEAD = layout.PAGE
_KEYS = (b"entries", b"pg_config", b"pg_status", b"version")
"""One of these stands at the beginning of every dump."""


def read_record_file(path: Path | str, known: KnownEntries | None = None) -> RecordFile:
    """Read one file, whatever its name; raises :class:`UnreadableError` and nothing else.

    ``known`` holds the values of files read before that it may share.
    """
    name = str(path)
    try:
        if known is not None and (box := read_alike(name, known)) is not None:
            return box
        with opened_record(name, "a black box") as fd:
            head = os.pread(fd, _HEAD, 0)
            if head.startswith(layout.MAGIC) or name.endswith(SUFFIX) or not looks_like_dump(head):
                return read_open_box(fd, name, head, known)
        return read_dump(Path(path))
    except UnreadableError:
        raise
    except MemoryError as error:
        raise UnreadableError(f"{path}: there is not enough memory to read it; leave it out") from error
    except Exception as error:
        # One file must not cost the others; errors that the readers foresee have better texts.
        found = f"{type(error).__name__}: {error}"
        raise UnreadableError(f"{path}: cannot be read ({found:.200}); leave it out, and report this") from error


def is_record_file(path: Path) -> bool:
    """True for a file that is a black box, or begins like a dump and names a dump's keys."""
    head = head_of(path)
    return head.startswith(layout.MAGIC) or (looks_like_dump(head) and any(key in head for key in _KEYS))


def head_of(path: Path) -> bytes:
    """The first bytes of a regular file; none of anything else, or of a file that may not be read."""
    try:
        with opened_record(str(path), "a record") as fd:
            return os.read(fd, _HEAD)
    except UnreadableError:
        return b""
