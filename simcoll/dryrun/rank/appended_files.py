"""The files that a rank of a dry run only appends to, and one order for the text that all ranks have appended.

A file that several ranks open to append to, such as a log, holds in the real run the text of all of them. Python tells
an audit hook how files are opened. Text that ranks have appended between two collectives may come in any order in the
real run; here it comes in the order of the ranks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from simcoll.dryrun.rank.private_mounts import FolderLayer

Place: TypeAlias = tuple[int, int, int]
"""The order of changes: the collectives that a rank had made of a group and of all groups before it, and the rank."""

_WRITES = os.O_WRONLY | os.O_RDWR


def place_of(counts: Mapping[str, int], group: str, rank: int) -> Place:
    """The place of a rank's change in the order of a group; ``counts`` are the collectives that it had made."""
    return counts.get(group, 0), sum(counts.values()), rank


class AppendedFiles:
    """The files that this rank appends to, with their sizes as far as other ranks know them.

    Only this process sees how its files are opened: those that its children change count as written anew.
    """

    def __init__(self, layers: Sequence[FolderLayer]) -> None:
        self._layers = layers
        self._quiet_thread: int | None = None
        self._sizes: dict[str, int] = {}
        self._rewritten: set[str] = set()
        self._tails: dict[str, list[tuple[Mapping[str, int], bytes]]] = {}

    def watch(self) -> None:
        """Note from now on how this process opens files, for as long as it lives."""
        sys.addaudithook(self._note)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Files that this thread opens within are not the program's."""
        self._quiet_thread = threading.get_ident()
        try:
            yield
        finally:
            self._quiet_thread = None

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._quiet_thread == threading.get_ident():
            return
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & _WRITES or not isinstance(path, (str, bytes, os.PathLike)):
            return
        with contextlib.suppress(OSError, ValueError):
            real = os.path.realpath(os.fsdecode(path))
            place = self._shown(real)
            if flags & os.O_APPEND and not flags & os.O_TRUNC:
                size = os.stat(real).st_size if os.path.exists(real) else 0
                self._sizes[place] = min(size, self._sizes.get(place, size))
            else:
                self._sizes.pop(place, None)
                self._rewritten.add(place)

    def _shown(self, place: str) -> str:
        """The program's name of a file, whose redirected calls open it in a layer."""
        for layer in self._layers:
            if place.startswith(layer.upper + "/"):
                return layer.place.rstrip("/") + place.removeprefix(layer.upper)
        return place

    def __contains__(self, place: str) -> bool:
        """True if this rank appends to a file, and has not written it anew since others were told of it."""
        return place in self._sizes and place not in self._rewritten

    def take(self, place: str, counts: Mapping[str, int]) -> bytes | None:
        """The bytes appended by this rank since others were told of the file; None after any other change to it."""
        if place not in self:
            if place in self._sizes:
                self._sizes[place] = os.stat(place).st_size
            return None
        with open(place, "rb") as file:
            if os.fstat(file.fileno()).st_size < self._sizes[place]:
                self.forget(place)
                return None
            file.seek(self._sizes[place])
            added = file.read()
        self._sizes[place] += len(added)
        self._tails.setdefault(place, []).append((dict(counts), added))
        return added

    def told(self) -> None:
        """Other ranks know the files as they are now."""
        self._rewritten.clear()

    def forget(self, place: str) -> None:
        """Another rank has written or removed the file."""
        self._sizes.pop(place, None)
        self._tails.pop(place, None)

    def merge(self, place: str, group: str, rank: int, others: Sequence[tuple[Place, bytes]]) -> None:
        """Insert bytes that others have appended to a file, in order with this rank's since the last collective."""
        own = [(place_of(counts, group, rank), data) for counts, data in self._tails.pop(place, [])]
        added = b"".join(data for _, data in sorted([*own, *others]))
        # Written in place: this rank may have the file open.
        with os.fdopen(os.open(place, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            end = self._sizes.get(place, os.fstat(file.fileno()).st_size)
            file.seek(end)
            late = file.read()
            file.seek(end - sum(len(data) for _, data in own))
            file.write(added + late)
            size = file.tell() - len(late)
        if place in self._sizes:
            self._sizes[place] = size

    def settle(self) -> None:
        """A collective has been made: bytes appended from now on come later."""
        self._tails.clear()
