"""Worker process that reads files within a memory limit, so that a faulty file harms no other process.

It reads paths from stdin, each after its length, and answers on stdout; it ends at the end of stdin.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from struct import Struct

from simcoll.blackbox import UnreadableError
from simcoll.blackbox.file_kinds import RecordFile, read_record_file
from simcoll.blackbox.reader_wire import Sender
from simcoll.blackbox.table import KnownEntries

LENGTH = Struct("<I")
"""The length field before a path."""

READY = "ready"
"""The first answer: it has started."""


def main(limit: int) -> None:
    """Serve until stdin ends; ``limit`` is the memory that reading may take, in bytes."""
    # Ctrl-C reaches every process of the terminal; the parent process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = FileIO(os.dup(1), "w")
    os.dup2(2, 1)
    _bound(limit)
    sender, known = Sender(answers), KnownEntries()
    try:
        sender.send(READY)
        for path in _paths():
            sender.send(_read(path, known, limit))
    except (BrokenPipeError, EOFError):
        return


def _paths() -> Iterator[Path]:
    source = sys.stdin.buffer
    while head := source.read(LENGTH.size):
        (length,) = LENGTH.unpack(head)
        yield Path(os.fsdecode(source.read(length)))


def _read(path: Path, known: KnownEntries, limit: int) -> RecordFile | UnreadableError:
    try:
        return read_record_file(path, known)
    except UnreadableError as error:
        if not isinstance(error.__cause__, MemoryError):
            return UnreadableError(str(error))
    return UnreadableError(f"{path}: cannot be read within {limit >> 20} MiB of memory; leave it out")


def _bound(limit: int) -> None:
    """Let the process have so much more memory than it has now, where the system can."""
    try:
        import resource
    except ImportError:
        return
    now = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = now + limit
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    # The exit code reports a crash; a core file would only fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
