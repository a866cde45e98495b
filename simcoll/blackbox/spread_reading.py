"""Reads files where the workers of an executor are: each reads some of them as this machine would (`reader_pool`).

What a worker has read comes as bytes, in the readers' wire format: shared values once, and only the types that readers
send are unpickled.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import cast

from simcoll.blackbox import format as layout
from simcoll.blackbox.file_kinds import head_of
from simcoll.blackbox.reader_pool import Outcome, Progress, read_files
from simcoll.blackbox.reader_wire import Receiver, Sender
from simcoll.core.executors import Spread
from simcoll.errors import ExecutorError

_FEWEST, _MOST = 32, 1024
_MOST_BYTES = 64 << 20
"""At most so many bytes of files are read by one task, unless a single file has more."""

_ROUNDS = 4
"""Each worker gets about so many tasks, so that all end at nearly the same time."""


@dataclass(frozen=True, slots=True)
class _Files:
    """Files that one task reads: absolute paths, the place of the first among all, and what that one is like here."""

    begin: int
    paths: tuple[str, ...]
    witness: str


@dataclass(frozen=True, slots=True)
class _Read:
    """What a task has read, as bytes; or the file that is another one, or none, on that host."""

    host: str
    data: bytes = b""
    absent: str = ""


def read_spread(paths: Sequence[str], spread: Spread, progress: Progress | None = None) -> list[Outcome]:
    """Read each file, as :func:`simcoll.blackbox.reader_pool.read_files` does, by the executor's workers.

    ``paths`` are absolute. Raises ExecutorError where a worker does not find a file that is here, or another one.
    """
    outcomes: dict[int, Outcome] = {}
    kept: dict[object, object] = {}
    for files, read in spread.results(_read, _divided(paths, spread.at_once())):
        if read.absent:
            _refuse(spread, read)
        receiver = Receiver(BytesIO(read.data), kept)
        for place in range(files.begin, files.begin + len(files.paths)):
            outcomes[place] = cast("Outcome", receiver.receive())
        if progress is not None:
            progress(len(outcomes), len(paths))
    return [outcomes[place] for place in range(len(paths))]


def _refuse(spread: Spread, read: _Read) -> None:
    raise ExecutorError(
        f"--executor {spread.address}: {read.absent} is not the same file on {read.host}, or is not there; give a "
        "folder that all workers see under one name, or leave --executor out"
    )


def _divided(paths: Sequence[str], slots: int) -> Iterator[_Files]:
    most = min(max(len(paths) // (_ROUNDS * slots), _FEWEST), _MOST)
    begin, taken, size = 0, list[str](), 0
    for place, path in enumerate(paths):
        taken.append(path)
        size += _size(path)
        if len(taken) >= most or size >= _MOST_BYTES or place + 1 == len(paths):
            yield _Files(begin, tuple(taken), _likeness(taken[0]))
            begin, taken, size = place + 1, [], 0


def _size(path: str) -> int:
    """The bytes that a file takes on the disk: a black box is longer than its content."""
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def _likeness(path: str) -> str:
    """A text by which a file is told from another one of the same name: of what no writer changes later."""
    head = head_of(Path(path))
    if head.startswith(layout.MAGIC):
        head = head[: layout.COUNTERS_OFFSET]
    return hashlib.blake2b(head, digest_size=16).hexdigest()


def _read(files: _Files) -> _Read:
    """Runs on a worker."""
    host = socket.gethostname()
    if _likeness(files.paths[0]) != files.witness:
        return _Read(host, absent=files.paths[0])
    absent = next((path for path in files.paths if not os.path.lexists(path)), "")
    if absent:
        return _Read(host, absent=absent)
    stream = BytesIO()
    sender = Sender(stream)
    for outcome in read_files(files.paths, workers=1):
        sender.send(outcome)
    return _Read(host, stream.getvalue())
