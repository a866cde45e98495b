"""Shows a rank the files that other ranks have written, by the order that collectives impose.

Each rank of a dry run writes to layers of its own. When it makes a collective, or creates a group, it saves copies of
what it has changed since the one before, as an entry of its *journal*. After the k-th collective of a group a rank
applies the entries that each other member made up to its own k-th collective of that group: in the real run those files
are there. The rank's own files stay as they are, unless another rank that has seen them changes them.

Ranks run side by side. In the first pass a rank waits, for a limited time, for those that were started before it and
have not come as far; it finds nothing of those that are started later. In the next passes the journals of the pass
before are complete. The progress of each rank is in memory that all share.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from simcoll.dryrun.rank.appended_files import AppendedFiles, Place, place_of
from simcoll.dryrun.rank.private_mounts import FolderLayer
from simcoll.dryrun.rank.sent_values import SentValues

_SLOTS = 128
_STARTED, _ORDER, _ENTRIES, _FIRST_SLOT = range(4)
_COLUMNS = _FIRST_SLOT + _SLOTS
_RUNNING, _ENDED = 1, 2
_LOOK_SECONDS = 0.001
_RACY_NS = 20_000_000
"""Later changes may have the same time stamp."""

_COPIED_BYTES = 1 << 22
"""Larger files are shown by a link."""

_CLONE = 0x40049409
"""Linux's FICLONE: a copy that shares the disk's blocks, where the file system can make one."""

_DIRECTORY, _FILE, _LINK, _GONE, _APPENDED = "directory", "file", "link", "gone", "appended"
_REPLACED = " replaced"
"""Ends the value of a folder that has taken the place of another one."""

_COLLECTIVE_NS, _FILE_NS = 1_000_000, 1_000
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_Ranks: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

WHITEOUT = ".simcoll-removed."
"""Prefix of the name of an empty file that stands for a removed one, where no overlay does."""


class RankProgress:
    """The progress of each rank of a dry run, in memory that this process shares with those that it forks.

    A rank counts its collectives of each group; groups have 128 places, chosen by a hash of their name.
    """

    def __init__(self, world_size: int) -> None:
        memory = mmap.mmap(-1, world_size * _COLUMNS * 4)
        self.table: np.ndarray[Any, np.dtype[np.uint32]] = np.frombuffer(memory, np.uint32).reshape(-1, _COLUMNS)
        self.world_size = world_size
        self._started = 0

    def start(self, rank: int) -> None:
        """Note that a rank is about to start, and its place in the order of starts."""
        self._started += 1
        self.table[rank] = 0
        self.table[rank, _ORDER] = self._started
        self.table[rank, _STARTED] = _RUNNING

    def end(self, rank: int) -> None:
        """Note that a rank has ended."""
        self.table[rank, _STARTED] = _ENDED

    def is_ahead(self, rank: int, own: int) -> bool:
        """True if a rank was started before this one, and runs."""
        row = self.table[rank]
        return bool(row[_STARTED] == _RUNNING and row[_ORDER] < self.table[own, _ORDER])

    def was_started(self, rank: int, before: int | None = None) -> bool:
        """True if a rank has been started, and that before another one if that is given."""
        order = self.table[rank, _ORDER]
        return bool(order and (before is None or order < self.table[before, _ORDER]))

    def made(self, rank: int) -> int:
        """The number of collectives that a rank has made."""
        return int(self.table[rank, _FIRST_SLOT:].sum())

    def was_first(self, rank: int) -> bool:
        """True if no rank was started before this one."""
        return int(self.table[rank, _ORDER]) == 1


@dataclass(frozen=True, slots=True)
class FileSharing:
    """The means by which ranks of a dry run share files: the folder of their changes, and each other's progress.

    ``overlays`` is false where the kernel allows none; ``places`` are the folders that they cover, None for all
    (:mod:`simcoll.dryrun.rank.private_mounts`). A rank waits for others at most ``patience`` seconds in all. ``run``
    counts the passes, from 0; ``began_ns`` is the time before the first one.
    """

    base: Path
    overlays: bool
    places: Sequence[str] | None
    progress: RankProgress
    patience: float
    run: int = 0
    began_ns: int = field(default_factory=time.time_ns)


def journal_name(rank: int, run: int) -> str:
    """The name of a rank's journal of one pass, in the folder ``journals``."""
    return f"{rank}.{run}"


def read_journal(path: str | Path, offset: int = 0) -> tuple[list[JournalEntry], int]:
    """A journal's entries from an offset on, and the offset of those that are still to come."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    documents = [json.loads(line) for line in whole.splitlines()]
    entries = [JournalEntry(counts, [Change(*one) for one in changes]) for counts, changes in documents]
    return entries, offset + len(whole)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a path: its kind now, and for a file the name of its copy, for a link its target.

    The copy of a file that a rank only appended to has the appended bytes. A folder has its mode.
    """

    path: str
    kind: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The changes of one rank, and the number of collectives of each group that it had made before it saved them."""

    counts: Mapping[str, int]
    changes: Sequence[Change]


@dataclass(slots=True)
class _Journal:
    """Another rank's journal as far as it has been read; ``new`` entries have not been applied."""

    path: str
    offset: int = 0
    new: list[JournalEntry] = field(default_factory=list)

    def read(self) -> int:
        """Read what has been added; returns the number of entries."""
        entries, self.offset = read_journal(self.path, self.offset)
        self.new += entries
        return len(entries)

    def take(self, group: str, count: int) -> Iterator[JournalEntry]:
        """Take the entries that were made before the ``count``-th collective of a group."""
        while self.new and self.new[0].counts.get(group, 0) < count:
            yield self.new.pop(0)


_State = tuple[int, ...]
"""Inode and mode; of anything but a folder also its size and the time of its last change, in nanoseconds."""


def _state_of_file(state: os.stat_result) -> _State:
    return state.st_ino, state.st_mode, state.st_size, state.st_ctime_ns


def _is_racy(state: _State, now: int) -> bool:
    """True if a small file may change once more without a change of its state."""
    return len(state) > 2 and state[2] <= _COPIED_BYTES and now - state[3] < _RACY_NS


class ChangedPaths:
    """Finds the changes in a rank's layers since it looked the last time."""

    def __init__(self, layers: Sequence[FolderLayer]) -> None:
        self._layers = layers
        self._listings: dict[str, tuple[int, list[str]]] = {}
        self._known: dict[str, _State] = {}
        self._racy: frozenset[str] = frozenset()

    def look(self) -> list[tuple[str, str]]:
        """The paths that have changed, parents first, each with its place in a layer; the latter is "" if removed."""
        known, racy = self._known, self._racy
        places = self.forget()
        now = time.time_ns()
        changed = [path for path, state in self._known.items() if known.get(path) != state or path in racy]
        self._racy = frozenset(path for path in changed if _is_racy(self._known[path], now))
        return [*((path, places[path]) for path in changed), *((path, "") for path in known if path not in places)]

    def forget(self) -> dict[str, str]:
        """Take all changes as known; returns the place in a layer of every path there."""
        found: dict[str, _State] = {}
        places: dict[str, str] = {}
        for layer in self._layers:
            self._visit(layer.upper, layer.place.rstrip("/"), found, places)
        self._known = found
        return places

    def _visit(self, upper: str, place: str, found: dict[str, _State], places: dict[str, str]) -> None:
        for name in self._names(upper):
            here = f"{upper}/{name}"
            try:
                state = os.lstat(here)
            except FileNotFoundError:
                continue
            path = f"{place}/{name}"
            if name.startswith(WHITEOUT):
                path = f"{place}/{name.removeprefix(WHITEOUT)}"
            places[path] = here
            if stat.S_ISDIR(state.st_mode):
                found[path] = state.st_ino, state.st_mode
                self._visit(here, path, found, places)
            else:
                found[path] = _state_of_file(state)

    def know(self, path: str, here: str) -> None:
        """Take a change of a file as known."""
        self._known[path] = _state_of_file(os.lstat(here))

    def _names(self, folder: str) -> list[str]:
        try:
            changed = os.stat(folder).st_ctime_ns  # a copy to an upper folder restores the other time
            if (kept := self._listings.get(folder)) is not None and kept[0] == changed:
                return kept[1]
            names = sorted(os.listdir(folder))
        except OSError:
            return []
        if time.time_ns() - changed > _RACY_NS:
            self._listings[folder] = changed, names
        return names


class SharedFiles:
    """A rank's side: its journal, and those of the others; ``view`` is where saved copies are, None to copy all."""

    def __init__(
        self, sharing: FileSharing, rank: int, raw: str, layers: Sequence[FolderLayer], view: str | None
    ) -> None:
        self._sharing, self._rank, self._raw, self._view = sharing, rank, raw, view
        self._table = sharing.progress.table
        self._changed = ChangedPaths(layers)
        self._appended = AppendedFiles(layers)
        self._journals = _journals_before(f"{raw}/journals", sharing.run)
        self._read = np.zeros(len(self._table), np.uint32)
        self._own: dict[str, dict[str, int]] = {}
        self._times: dict[str, int] = {}
        self._copies: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._members: dict[str, frozenset[int]] = {}
        self._entries = 0
        self._patience = sharing.patience
        for folder in ("journals", "snapshots"):
            os.makedirs(f"{raw}/{folder}", exist_ok=True)

    def watch_program(self) -> None:
        """Note from now on which files this process appends to."""
        self._appended.watch()

    def sent_values(self, note: Callable[[str, bytes], object]) -> SentValues:
        """The values that ranks send each other beside files; ``note`` is called with those that this one sends."""
        return SentValues(self._sharing, self._rank, self._raw, note, self)

    def counts(self) -> Mapping[str, int]:
        """The number of collectives of each group that this rank has made."""
        return self._counts

    def is_before(self, counts: Mapping[str, int], rank: int) -> bool:
        """True if another rank, which had made so many collectives, met this one in a collective after that."""
        return any(counts.get(group, 0) < own for group, own in self._counts.items() if rank in self._members[group])

    def is_after(self, counts: Mapping[str, int], rank: int) -> bool:
        """True if another rank, which had made so many collectives, met this one in one that this one is to make."""
        return any(
            count > self._counts.get(group, 0)
            for group, count in counts.items()
            if rank in self._members.get(group, ())
        )

    def of_group(self, members: Sequence[int]) -> GroupFiles:
        """The files that a group orders; groups of the same members are numbered."""
        name = hashlib.blake2b(repr(list(members)).encode(), digest_size=8).hexdigest()
        self._groups[name] = number = self._groups.get(name, 0) + 1
        others = np.array(
            [member for member in members if member != self._rank and member < len(self._table)], np.int64
        )
        self._members[f"{name}.{number}"] = frozenset(members)
        return GroupFiles(self, f"{name}.{number}", others)

    def publish(self) -> None:
        """Save the changes that this rank has made since the last time."""
        with self._appended.quiet():
            changed = self._changed.look()
            self._date(changed)
            changes = [change for path, here in changed if (change := self._change(path, here)) is not None]
            self._appended.told()
            self._write(changes)

    def _date(self, changed: Sequence[tuple[str, str]]) -> None:
        """Give files that have their time from the clock, in that order, times that are the same in each pass."""
        dated: list[tuple[int, str, str]] = []
        for path, here in changed:
            with contextlib.suppress(OSError):
                state = os.lstat(here)
                if stat.S_ISREG(state.st_mode) and self._times.get(path) != state.st_mtime_ns > self._sharing.began_ns:
                    dated.append((state.st_mtime_ns, path, here))
        first = self._sharing.began_ns + sum(self._counts.values()) * _COLLECTIVE_NS
        for number, (_, path, here) in enumerate(sorted(dated)):
            with contextlib.suppress(OSError):
                self._times[path] = first + number * _FILE_NS
                os.utime(here, ns=(self._times[path],) * 2)
                self._changed.know(path, here)

    def _write(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self._own.update((change.path, dict(self._counts)) for change in changes if change.kind != _DIRECTORY)
        line = json.dumps([self._counts, [[one.path, one.kind, one.value] for one in changes]]) + "\n"
        with open(f"{self._raw}/journals/{journal_name(self._rank, self._sharing.run)}", "a", encoding="utf-8") as file:
            file.write(line)
        self._entries += 1
        self._table[self._rank, _ENTRIES] = self._entries

    def _change(self, path: str, here: str) -> Change | None:
        if not here or os.path.basename(here).startswith(WHITEOUT):
            self._copies.pop(path, None)
            self._appended.forget(path)
            return Change(path, _GONE)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            mode = os.lstat(here).st_mode
            if stat.S_ISDIR(mode):
                return Change(path, _DIRECTORY, f"{stat.S_IMODE(mode):o}{_REPLACED * _is_opaque(here)}")
            if stat.S_ISLNK(mode):
                return Change(path, _LINK, os.readlink(here))
            if stat.S_ISCHR(mode) and os.lstat(here).st_rdev == 0:
                return Change(path, _GONE)
            if stat.S_ISREG(mode):
                if (added := self._appended.take(path, self._counts)) is not None:
                    known = path in self._own
                    return Change(path, _APPENDED, self._saved_bytes(added)) if added or not known else None
                return None if self._is_saved(path, here) else Change(path, _FILE, self._saved(path, here))
        return None

    def _is_saved(self, path: str, here: str) -> bool:
        """True if the last copy of a small file equals it: a file looks changed while its state may be racy."""
        name = self._copies.get(path)
        if name is None or os.stat(here).st_size > _COPIED_BYTES:
            return False
        copy = Path(f"{self._raw}/snapshots/{name}")
        known, now = copy.stat(), os.stat(here)
        if (known.st_mode, known.st_mtime_ns) != (now.st_mode, now.st_mtime_ns):
            return False
        return Path(here).read_bytes() == copy.read_bytes()

    def _saved(self, path: str, here: str) -> str:
        """Copy a file; returns the copy's name."""
        name = self._new_copy()
        copy = f"{self._raw}/snapshots/{name}"
        with open(here, "rb") as source, open(copy, "wb") as target:
            try:
                fcntl.ioctl(target.fileno(), _CLONE, source.fileno())
            except OSError:
                shutil.copyfile(here, copy)
        shutil.copystat(here, copy)
        self._copies[path] = name
        return name

    def _saved_bytes(self, data: bytes) -> str:
        name = self._new_copy()
        Path(f"{self._raw}/snapshots/{name}").write_bytes(data)
        return name

    def _new_copy(self) -> str:
        folder = f"{self._raw}/snapshots/{journal_name(self._rank, self._sharing.run)}.{self._entries}"
        os.makedirs(folder, exist_ok=True)
        return f"{os.path.basename(folder)}/{len(os.listdir(folder))}"

    def count(self, group: str) -> int:
        """Count a collective of a group; returns its number."""
        self._counts[group] = count = self._counts.get(group, 0) + 1
        self._table[self._rank, _slot(group)] = count
        return count

    def wait(self, group: str, count: int, others: _Ranks) -> None:
        """Wait for ranks that were started before this one to make so many collectives of a group."""
        if self._sharing.run or self._patience <= 0:
            return
        slot, begin = _slot(group), time.monotonic()
        own = self._table[self._rank, _ORDER]
        while True:
            rows = self._table[others]
            behind = (rows[:, _STARTED] == _RUNNING) & (rows[:, _ORDER] < own) & (rows[:, slot] < count)
            if not behind.any() or time.monotonic() - begin > self._patience:
                break
            time.sleep(_LOOK_SECONDS)
        self._patience -= time.monotonic() - begin

    def apply(self, group: str, count: int, others: _Ranks) -> None:
        """Apply the changes that other ranks made before their ``count``-th collective of a group."""
        entries = [
            (place_of(entry.counts, group, other), entry)
            for other in self._with_news(others)
            for entry in self._journals[other].take(group, count)
        ]
        if entries:
            with self._appended.quiet():
                self._apply(group, sorted(entries, key=lambda one: one[0]))
        self._appended.settle()

    def _apply(self, group: str, entries: Sequence[tuple[Place, JournalEntry]]) -> None:
        latest: dict[str, Change] = {}
        appended: dict[str, list[tuple[Place, bytes]]] = {}
        for place, entry in entries:
            for change in entry.changes:
                if change.kind == _APPENDED and (change.path in self._appended or self._is_later(entry, change.path)):
                    data = Path(f"{self._raw}/snapshots/{change.value}").read_bytes()
                    appended.setdefault(change.path, []).append((place, data))
                elif change.kind != _APPENDED and self._is_later(entry, change.path):
                    appended.pop(change.path, None)
                    latest.pop(change.path, None)
                    latest[change.path] = change
        for change in latest.values():
            self._own.pop(change.path, None)
            self._copies.pop(change.path, None)
            if change.kind != _DIRECTORY:
                self._appended.forget(change.path)
            with contextlib.suppress(OSError):
                self._show(change)
        for path, added in appended.items():
            with contextlib.suppress(OSError):
                self._appended.merge(path, group, self._rank, added)
        self._changed.forget()  # it is not the rank's own

    def _is_later(self, entry: JournalEntry, path: str) -> bool:
        """True if another rank's change comes after this rank's own of the same path: it has then seen that one."""
        own = self._own.get(path)
        return own is None or any(entry.counts.get(name, 0) > own.get(name, 0) for name in self._counts)

    def _with_news(self, others: _Ranks) -> list[int]:
        """The ranks whose journals have entries that are not applied yet."""
        if self._sharing.run == 0:
            rows = self._table[others]
            written = (rows[:, _ORDER] < self._table[self._rank, _ORDER]) & (rows[:, _ENTRIES] > self._read[others])
            for other in others[written].tolist():
                journal = self._journals.setdefault(other, _Journal(f"{self._raw}/journals/{journal_name(other, 0)}"))
                self._read[other] += journal.read()
        return [other for other in self._journals if self._journals[other].new and other in others]

    def _show(self, change: Change) -> None:
        path = change.path
        exists = os.path.lexists(path)
        is_folder = exists and os.path.isdir(path) and not os.path.islink(path)
        if change.kind == _DIRECTORY:
            if (
                is_folder
                and change.value.endswith(_REPLACED)
                and not any(own.startswith(path + "/") for own in self._own)
            ):
                shutil.rmtree(path)
            elif exists and not is_folder:
                os.unlink(path)
            os.makedirs(path, exist_ok=True)
            mode = int(change.value.removesuffix(_REPLACED), 8)
            if stat.S_IMODE(os.stat(path).st_mode) != mode:
                os.chmod(path, mode)
            return
        if is_folder:
            shutil.rmtree(path)
        elif exists:
            os.unlink(path)
        if change.kind == _LINK:
            os.symlink(change.value, path)
        elif change.kind == _FILE:
            self._show_file(path, f"{self._raw}/snapshots/{change.value}", change.value)

    def _show_file(self, path: str, copy: str, name: str) -> None:
        if self._view is not None and os.stat(copy).st_size > _COPIED_BYTES:
            os.symlink(f"{self._view}/{name}", path)
        else:
            shutil.copyfile(copy, path)
            shutil.copystat(copy, path)


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """The order that one group's collectives impose on the files of its members."""

    files: SharedFiles
    name: str
    others: _Ranks

    def before(self) -> int:
        """A collective is about to be made; returns its number."""
        self.files.publish()
        return self.files.count(self.name)

    def after(self, count: int) -> None:
        """That collective has been made."""
        self.files.wait(self.name, count, self.others)
        self.files.apply(self.name, count, self.others)


def _journals_before(folder: str, run: int) -> dict[int, _Journal]:
    """Each rank's journal of its last pass before this one, by rank."""
    found: dict[int, _Journal] = {}
    if run:
        last: dict[int, int] = {}
        for rank, of_run in (map(int, name.split(".")) for name in os.listdir(folder)):
            if of_run < run:
                last[rank] = max(of_run, last.get(rank, 0))
        found = {rank: _Journal(f"{folder}/{journal_name(rank, of_run)}") for rank, of_run in last.items()}
        for journal in found.values():
            journal.read()
    return found


def _slot(group: str) -> int:
    return _FIRST_SLOT + int(hashlib.blake2b(group.encode(), digest_size=4).hexdigest(), 16) % _SLOTS


def _is_opaque(folder: str) -> bool:
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"y":
                return True
    return False
