"""The black box's growing table: entries appended to the file, and a disk that may fill up meanwhile."""

from __future__ import annotations

import errno
import json
import os
import secrets
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from simcoll.blackbox import format as layout
from simcoll.blackbox.format import EntryKind

_RETRY_NS = 1_000_000_000
_HEAD = Struct("<4sII")
_TAIL = Struct("<II")


class EntryTable:
    """The entries of one black box, for a writer that holds its lock; ``fd`` is closed by :meth:`close`.

    ``start`` is the table's first byte, behind which :data:`~simcoll.blackbox.format.TABLE_CHUNK` bytes are reserved.
    What finds no room is counted in ``lost`` and said once on stderr; nothing is raised.
    """

    def __init__(self, path: Path, fd: int, start: int) -> None:
        self.lost = 0
        self._path = path
        self._fd = fd
        self._start = self._end = start
        self._reserved = start + layout.TABLE_CHUNK
        self._retry_ns = 0

    def append(self, kind: EntryKind, index: int, payload: bytes, *, last_words: bool = False) -> bool:
        """Write one entry behind the last; False where there is no room. ``last_words`` may use the table's reserve."""
        if self._fd < 0:
            return False
        limit = layout.TABLE_LIMIT - (0 if last_words else layout.TABLE_RESERVE)
        entry = pack_entry(kind, index, payload)
        if len(payload) > layout.ENTRY_LIMIT or self._end + len(entry) > self._start + limit:
            return self._lose("its table of entries is full")
        if time.monotonic_ns() < self._retry_ns:
            return self._lose("no room")
        try:
            self._grow(self._end + len(entry))
            write_all(self._fd, entry, self._end)
        except OSError as error:
            self._retry_ns = time.monotonic_ns() + _RETRY_NS
            return self._lose(error.strerror or str(error))
        self._end += len(entry)
        return True

    def read(self) -> bytes:
        """All entries as they stand in the file; raises OSError."""
        with self._path.open("rb") if self._fd < 0 else os.fdopen(os.dup(self._fd), "rb") as file:
            return os.pread(file.fileno(), self._end - self._start, self._start)

    def flush(self) -> None:
        """Have the disk hold the file; raises OSError."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Give the descriptor back; later entries are not written."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _grow(self, size: int) -> None:
        if size > self._reserved:
            wanted = max(size, self._reserved + layout.TABLE_CHUNK)
            reserve(self._fd, self._reserved, wanted - self._reserved)
            self._reserved = wanted

    def _lose(self, reason: str) -> bool:
        self.lost += 1
        if self.lost == 1:
            consequence = "the job goes on; calls and lines not seen before are counted, no longer written down"
            print(f"simcoll: {self._path}: {reason}; {consequence}", file=sys.stderr)  # noqa: T201
        return False


def encode(document: object) -> bytes:
    """A document as the JSON of an entry; what JSON does not know is written as its text."""
    return json.dumps(document, separators=(",", ":"), default=str).encode("ascii")


def pack_entry(kind: EntryKind, index: int, payload: bytes) -> bytes:
    """One entry as it stands in the file, padded to a multiple of four bytes."""
    tail = _TAIL.pack(index, kind) + payload
    entry = _HEAD.pack(layout.ENTRY_MARKER, len(payload), zlib.crc32(tail)) + tail
    return entry + b"\0" * (-len(entry) % 4)


def reserve(fd: int, offset: int, size: int) -> None:
    """Make sure that the disk has blocks for these bytes; raises OSError (ENOSPC, EDQUOT) where it has not."""
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        # Some file systems cannot reserve; zeros that are written have their blocks.
        for start in range(offset, offset + size, 1 << 20):
            write_all(fd, bytes(min(1 << 20, offset + size - start)), start)


@contextmanager
def whole_file(path: Path) -> Iterator[int]:
    """A descriptor of a new file that takes the name ``path`` when the block has ended well; raises OSError.

    The descriptor is then the caller's. The file's name is no other's until then: on a shared file
    system another job's rank may have the same number and process.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        yield fd
        draft.replace(path)
    except BaseException:
        os.close(fd)
        draft.unlink(missing_ok=True)
        raise


def write_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    """``os.pwrite`` until everything is written; raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
