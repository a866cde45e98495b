"""The private files of a dry run's ranks: the method that this system allows, their place, and their removal.

The ranks' files, and copies of them for each other, are in ``rank-files`` in the dry run's folder, or where its file
system cannot hold the upper folder of an overlay, in a temporary folder elsewhere. All of it is removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from simcoll.dryrun.process_pool import remove_tree
from simcoll.dryrun.rank.private_mounts import mount_privately, writable_places
from simcoll.dryrun.rank.sent_values import has_sent
from simcoll.dryrun.rank.settings import DryRun
from simcoll.dryrun.rank.shared_files import FileSharing, RankProgress, read_journal
from simcoll.errors import BAD_INPUT
from simcoll.launch.fork import fork
from simcoll.launch.preconditions import PreconditionError

RANK_FILES = "rank-files"
"""The folder in that of the dry run."""

REDIRECTED = (
    "this system gives a process no file systems of its own (user namespaces, overlayfs): what Python code of a rank "
    "wrote was kept apart and removed, what other code wrote was not"
)
"""The note of a report where there were no overlays."""

_MOST_PATIENCE = 30.0
_MOST_TRIED = 100
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a folder, in which a private one is made

_Choice: TypeAlias = "tuple[Path, Sequence[str] | None]"


@contextmanager
def private_files(dry_run: DryRun, timeout: float) -> Iterator[DryRun]:
    """The dry run with private files for its ranks, each of which may run ``timeout`` seconds.

    Raises PreconditionError where the folder for them is there and cannot be removed.
    """
    progress, patience = RankProgress(dry_run.world_size), min(timeout / 4, _MOST_PATIENCE)
    own = dry_run.folder.resolve() / RANK_FILES
    # Ranks read objects that others of this dry run pickled there: nothing may be left from before.
    remove_tree(own)
    if os.path.lexists(own):
        raise PreconditionError(
            BAD_INPUT, f"{own} is there and cannot be removed; remove it, or give another folder with --out"
        )
    with contextlib.ExitStack() as stack:
        stack.callback(remove_tree, own)
        choices = _choices(own, [*_usual_places(dry_run), *_named_places(dry_run)], stack)
        found = next((one for one in choices if _can_mount(*one, dry_run)), None)
        own.mkdir(mode=0o700, exist_ok=True)
        base, places = found or (own, None)
        yield replace(dry_run, files=FileSharing(base, found is not None, places, progress, patience))


def _choices(own: Path, written: Sequence[str], stack: contextlib.ExitStack) -> Iterator[_Choice]:
    """Folders for the ranks' files, and places to cover: first all of them."""
    places = writable_places(written)
    own.mkdir(mode=0o700, exist_ok=True)
    yield own, None
    yield own, places
    for parent in (tempfile.gettempdir(), _SHARED_MEMORY):
        with contextlib.suppress(OSError):
            base = Path(tempfile.mkdtemp(prefix="simcoll-", dir=parent))
            stack.callback(remove_tree, base)
            yield base, None
            yield base, places


def _usual_places(dry_run: DryRun) -> list[str]:
    """Folders that programs write to."""
    return [os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir(), str(dry_run.script.absolute().parent)]


def _named_places(dry_run: DryRun) -> list[str]:
    """Other folders that this program may write to: links lead there, or its arguments or environment name them."""
    links = [entry.path for entry in os.scandir() if entry.is_symlink()]
    words = [word for text in (*dry_run.arguments, *os.environ.values()) for word in re.split("[=:,]", text)]
    return [tempfile.gettempdir(), *links, *(word for word in words if word.startswith("/"))]


def _can_mount(base: Path, places: Sequence[str] | None, dry_run: DryRun) -> bool:
    """True if a process can have such overlays, and write wherever it may write now."""
    pid = fork()
    if pid == 0:
        code = 1
        try:
            code = int(not _covers(base, places, dry_run))
        finally:
            os._exit(code)
    covers = os.waitpid(pid, 0)[1] == 0
    remove_tree(base / "layers")
    return covers


def _covers(base: Path, places: Sequence[str] | None, dry_run: DryRun) -> bool:
    folders = [*_usual_places(dry_run), *(entry.path for entry in os.scandir(os.getcwd()) if entry.is_dir())][
        :_MOST_TRIED
    ]
    kept = dry_run.folder.resolve()
    tried = [place for place in map(Path, folders) if kept not in (place, *place.parents) and os.access(place, os.W_OK)]
    before = [os.stat(place).st_dev for place in tried]
    try:
        mount_privately(base, "probe", kept, places)
        for place, device in zip(tried, before, strict=True):
            os.rmdir(tempfile.mkdtemp(dir=place))
            if os.stat(place).st_dev == device:
                return False
    except OSError:
        return False
    return True


def made_changes(sharing: FileSharing) -> dict[int, object]:
    """The changes that ranks have saved for others in this pass, by rank, without those of the first one to start.

    All others find that one's files in the same pass.
    """
    found: dict[int, object] = {}
    for path in (sharing.base / "journals").glob(f"*.{sharing.run}"):
        rank = int(path.name.partition(".")[0])
        entries, _ = read_journal(path)
        if entries and not sharing.progress.was_first(rank):
            found[rank] = [(entry.counts, [(one.path, one.kind) for one in entry.changes]) for entry in entries]
    return found


def have_shared(dry_run: DryRun) -> bool:
    """True if ranks have left anything for others: files, objects, small messages, keys, the shapes of a stage."""
    if dry_run.files is None:
        return False
    base = dry_run.files.base
    journals = (read_journal(path)[0] for path in (base / "journals").glob("*"))
    changed = any(entry.changes for entries in journals for entry in entries)
    return changed or has_sent(base) or any(dry_run.folder.glob("rank*.stage*"))
