"""The files of a node that node 0 takes: which they are, their chunks, and where node 0 puts them.

A file is named by its kind and by numbers, of which each side makes the name: no path ever comes from a peer. It is
taken in chunks that their digests name, so that nothing is taken twice: not by a second look at a job that stands, and
not after a connection broke. Chunks of zeros, of which most of a black box consists, are not sent at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simcoll.blackbox.accounts import LaunchAccount
from simcoll.blackbox.file_kinds import DUMPS
from simcoll.blackbox.format import MAX_RANKS, SUFFIX
from simcoll.blackbox.gather import dumps_beside, matching
from simcoll.blackbox.header import created_ns
from simcoll.core.clock import written_ns
from simcoll.core.io import open_at_once
from simcoll.launch.nodes.wire import CHUNK, WireError, whole

BOX: Final = "box"
DUMP: Final = "dump"
ACCOUNTS: Final = ("launch", "stall", "host")
"""Each node has one of these: what its launcher, its monitor and its host's kernel said."""

MOST_FILE_BYTES: Final = 320 << 20
"""The largest black box that the format allows has 288 MiB."""

MOST_NODE_BYTES: Final = 4 << 30
MOST_FILES: Final = 1024
_MOST_ATTEMPTS: Final = 1 << 20
_DIGEST: Final = 16
_ZERO: Final = ""
"""Stands for the digest of a chunk of zeros."""

_UNKNOWN: Final = "?"

_ATTEMPT = re.compile(r"\.attempt(\d{1,6})$")
_RANK = re.compile(r"(\d{1,7})$")


@dataclass(frozen=True, slots=True, order=True)
class FileKey:
    """The name of a file between nodes. ``rank`` is 0 for accounts, ``attempt`` for all but black boxes."""

    kind: str
    rank: int = 0
    attempt: int = 0

    @classmethod
    def of(cls, value: object) -> FileKey:
        """Check a peer's word; raises :class:`WireError`."""
        if not isinstance(value, list) or len(value) != 3 or value[0] not in (BOX, DUMP, *ACCOUNTS):
            raise WireError(f"expected a file, got {value!r:.80}")
        key = cls(str(value[0]), whole(value[1]), whole(value[2]))
        if key.rank >= MAX_RANKS or key.attempt >= _MOST_ATTEMPTS or (key.kind in ACCOUNTS and key.rank):
            raise WireError(f"expected a file, got {value!r:.80}")
        return key

    def words(self) -> list[object]:
        """As :meth:`of` reads it."""
        return [self.kind, self.rank, self.attempt]

    def name(self, node: int) -> str:
        """The file's name at node 0."""
        if self.kind == BOX:
            return f"rank{self.rank:05d}{f'.attempt{self.attempt}' if self.attempt else ''}{SUFFIX}"
        return f"{DUMPS}{self.rank}" if self.kind == DUMP else f"{self.kind}-node{node}.json"


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as its node tells of it: its size, and the digest of each chunk."""

    key: FileKey
    size: int
    digests: tuple[str, ...]

    @classmethod
    def of(cls, value: object) -> Listed:
        """Check a peer's word; raises :class:`WireError`."""
        if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
            raise WireError(f"expected a file, its size and its chunks, got {value!r:.80}")
        key, size, digests = FileKey.of(value[0]), whole(value[1]), tuple(map(str, value[2]))
        if size > MOST_FILE_BYTES:
            raise WireError(f"a file of {size} bytes is larger than the {MOST_FILE_BYTES >> 20} MiB that are taken")
        if len(digests) != -(-size // CHUNK):
            raise WireError(f"a file of {size} bytes has not {len(digests)} chunks")
        return cls(key, size, digests)

    def words(self) -> list[object]:
        """As :meth:`of` reads it."""
        return [self.key.words(), self.size, list(self.digests)]


def own_files(folder: Path, account: Path, launch: LaunchAccount, since_ns: int) -> dict[FileKey, Path]:
    """The files of this node's ranks, of the last attempt, and its accounts; ``since_ns`` is this run's own start."""
    found = {}
    ranks = {one.rank for one in launch.ranks}
    for rank in sorted(ranks):
        found_boxes = matching(folder, f"rank{rank:05d}*{SUFFIX}")
        boxes = {_attempt(path): path for path in found_boxes if _is_new_box(path, since_ns)}
        if boxes:
            found[FileKey(BOX, rank, max(boxes))] = boxes[max(boxes)]
    for path in dumps_beside(folder):
        named = _RANK.search(path.name)
        if named is not None and int(named[1]) in ranks and _is_new(path, since_ns):
            found[FileKey(DUMP, int(named[1]))] = path
    for kind in ACCOUNTS:
        path = account.with_name(account.name.replace("launch", kind, 1))
        if path.exists():
            found[FileKey(kind)] = path
    return found


def _attempt(path: Path) -> int:
    named = _ATTEMPT.search(path.name.removesuffix(SUFFIX))
    return 0 if named is None else int(named[1])


def _is_new_box(path: Path, since_ns: int) -> bool:
    """True for a black box of this run, by its header where that can be read.

    A box's file time does not tell: it may be a file server's clock, and a process of an earlier run may still write.
    """
    created = created_ns(path)
    return created >= since_ns if created else _is_new(path, since_ns)


def _is_new(path: Path, since_ns: int) -> bool:
    try:
        return written_ns(path.stat()) >= since_ns
    except OSError:
        return False


def listed(files: Mapping[FileKey, Path]) -> Iterator[Listed]:
    """The files with their digests; those that cannot be read, or are too large, are left out."""
    for key, path in files.items():
        with contextlib.suppress(OSError), open_at_once(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= MOST_FILE_BYTES:
                yield Listed(key, size, tuple(_digest(file.read(CHUNK)) for _ in range(-(-size // CHUNK))))


def chunk_of(path: Path, number: int) -> bytes:
    """One chunk of a file; raises OSError."""
    with open_at_once(path) as file:
        return os.pread(file.fileno(), CHUNK, number * CHUNK)


def _digest(chunk: bytes) -> str:
    if chunk.count(0) == len(chunk):
        return _ZERO
    return hashlib.blake2b(chunk, digest_size=_DIGEST).hexdigest()


class Staging:
    """Node 0's copies of another node's files, until it is known that no better ones will come."""

    def __init__(self, folder: Path, node: int) -> None:
        self._folder = folder
        self._node = node
        self._digests: dict[FileKey, list[str]] = {}

    def take(self, files: Iterable[Listed], ranks: Iterable[int]) -> list[Listed]:
        """The listed files that node 0 takes: those of ``ranks``, within the limits; raises :class:`WireError`.

        Copies of others are removed.
        """
        files, allowed = list(files), set(ranks)
        if len(files) > MOST_FILES or sum(file.size for file in files) > MOST_NODE_BYTES:
            raise WireError(f"the files are more than {MOST_FILES}, or {MOST_NODE_BYTES >> 30} GiB")
        taken = [file for file in files if file.key.kind in ACCOUNTS or file.key.rank in allowed]
        for key in self._digests.keys() - {file.key for file in taken}:
            self._path(key).unlink(missing_ok=True)
            del self._digests[key]
        return taken

    def lacking(self, file: Listed) -> list[int]:
        """The numbers of the chunks that are still to be taken; raises OSError."""
        path, known = self._path(file.key), self._digests.setdefault(file.key, [])
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if known else "w+b") as copy:
            before = os.fstat(copy.fileno()).st_size
            copy.truncate(file.size)
        del known[len(file.digests) :]
        if before != file.size and (cut := min(before, file.size) // CHUNK) < len(known):
            known[cut:] = [_UNKNOWN] * (len(known) - cut)
        known += [_ZERO] * (len(file.digests) - len(known))
        for number, digest in enumerate(file.digests):
            if digest == _ZERO != known[number]:
                self.put(file.key, number, bytes(min(CHUNK, file.size - number * CHUNK)))
        return [number for number, digest in enumerate(file.digests) if digest != known[number]]

    def put(self, key: FileKey, number: int, chunk: bytes) -> None:
        """Write one chunk; raises OSError."""
        fd = os.open(self._path(key), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(fd, chunk, number * CHUNK)
        finally:
            os.close(fd)
        self._digests[key][number] = _digest(chunk)

    def paths(self) -> list[Path]:
        """The copies of the ranks' records."""
        return [self._path(key) for key in sorted(self._digests) if key.kind not in ACCOUNTS]

    def adopt(self, folder: Path, ranks: Iterable[int]) -> None:
        """Move the copies, of these ranks, to where the records of node 0's own ranks are; raises OSError."""
        allowed = set(ranks)
        for key in sorted(self._digests):
            if key.kind in ACCOUNTS or key.rank in allowed:
                self._path(key).replace(folder / key.name(self._node))
        self.clear()

    def clear(self) -> None:
        """Remove the copies."""
        self._digests.clear()
        shutil.rmtree(self._folder / str(self._node), ignore_errors=True)

    def _path(self, key: FileKey) -> Path:
        return self._folder / str(self._node) / key.name(self._node)
