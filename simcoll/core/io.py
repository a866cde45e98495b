"""Opens input files safely, even if a path is a pipe or a device, and writes output files whole or not at all.

:func:`make_sparse` gives back the room on the disk that a file has reserved and not written.
"""

from __future__ import annotations

import errno
import os
import secrets
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from simcoll.errors import UnreadableError

_BLOCK = 1 << 16


_ZEROS = bytes(_BLOCK)


def make_sparse(path: Path) -> None:
    """Put a copy with holes in a file's place: the same bytes, zeros in whole blocks take no room; raises OSError."""
    blocks = []
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for begin in range(0, size, _BLOCK):
            block = os.pread(file.fileno(), _BLOCK, begin)
            if block != _ZEROS[: len(block)]:
                blocks.append((begin, block))
    with written_whole(path) as draft, open(draft, "wb") as file:
        for begin, block in blocks:
            file.seek(begin)
            file.write(block)
        file.truncate(size)


_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class opened_record:  # noqa: N801 - it is used as a function, and a function that yields takes four times as long
    """A descriptor of a file that should be ``wanted`` (``a black box``), without waiting for a pipe's writer.

    Raises :class:`~simcoll.errors.UnreadableError` for any error of the system, also within the block.
    """

    __slots__ = ("_fd", "_path", "_wanted")

    def __init__(self, path: str, wanted: str) -> None:
        self._path, self._wanted = path, wanted

    def __enter__(self) -> int:
        try:
            self._fd = os.open(self._path, _FLAGS)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            text = f"{self._path}: cannot be opened: {reason}; give {self._wanted} that you may read"
            raise UnreadableError(text) from error
        return self._fd

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
        if isinstance(error, OSError):
            text = f"{self._path}: cannot be read: {error.strerror}; give {self._wanted}, a regular file"
            raise UnreadableError(text) from error


def written_until(fd: int, start: int, end: int) -> int:
    """Returns the place behind which nothing but a hole comes up to ``end``, as far as the file system knows of holes.

    To read a hole takes as long as to read zeros.
    """
    try:
        hole = os.lseek(fd, start, os.SEEK_HOLE)
    except OSError:
        return end
    if hole >= end:
        return end
    try:
        return end if os.lseek(fd, hole, os.SEEK_DATA) < end else hole
    except OSError as error:
        return hole if error.errno == errno.ENXIO else end


def open_at_once(path: Path) -> BinaryIO:
    """Open for reading, without waiting for a named pipe's writer: a pipe without a writer reads as empty.

    A pipe that has its writer (``<(nvidia-smi topo -m)``) is read as a file is. Raises OSError.
    """
    file = open(path, "rb", opener=_opener)  # noqa: SIM115 - it is the caller's
    os.set_blocking(file.fileno(), True)
    return file


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """The path of a draft beside a file, which takes the file's name at the end: a reader never sees half of it.

    A device, a pipe or a link (/dev/stdout is one) is written to as it is: a file must never take its place.
    """
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path)):
        yield path
        return
    # The draft's name has nothing of the file's: that may be as long as names can be.
    # Processes of other hosts may have this one's number.
    draft = path.with_name(f".simcoll-{os.getpid()}-{secrets.token_hex(4)}.draft")
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader never sees half of it; raises OSError."""
    with written_whole(path) as place:
        place.write_text(text, encoding="utf-8", errors="backslashreplace")


def printable(text: str) -> str:
    """A text from outside as one harmless line: no line breaks, no control sequences."""
    return "".join(character if character.isprintable() else " " for character in text)


def stated_path(text: str) -> Path:
    """A path as it is typed. One of no letters, as of a variable that is not set, would pass for the current folder."""
    if not text:
        raise ArgumentTypeError("expected a path, got an empty one; is a variable not set?")
    return Path(text)
