"""The private files of a dry run's ranks: which way this system allows, where they are, and their removal.

What ranks write, and copies of it for each other, is in ``rank-files`` in the dry run's folder, or where its file
system cannot hold the upper folder of an overlay, in a temporary folder elsewhere. All of it is removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from simcoll.dryrun.process_pool import remove_tree
from simcoll.dryrun.rank.main import DryRun
from simcoll.dryrun.rank.private_mounts import mount_privately
from simcoll.dryrun.rank.shared_files import FileSharing, RankProgress, read_journal
from simcoll.launch.fork import fork

RANK_FILES = "rank-files"
"""The folder in that of the dry run."""

REDIRECTED = (
    "this system gives a process no file systems of its own (user namespaces, overlayfs): what Python code of a rank "
    "wrote was kept apart and removed, what other code wrote was not"
)
"""The note of a report where there were no overlays."""

_MOST_PATIENCE = 30.0
_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def private_files(dry_run: DryRun, timeout: float) -> Iterator[DryRun]:
    """The dry run with private files for its ranks, each of which may run ``timeout`` seconds."""
    with contextlib.ExitStack() as stack:
        base, overlays = _base_for(dry_run, stack)
        sharing = FileSharing(base, overlays, RankProgress(dry_run.world_size), min(timeout / 4, _MOST_PATIENCE))
        yield replace(dry_run, files=sharing)


def _base_for(dry_run: DryRun, stack: contextlib.ExitStack) -> tuple[Path, str | None]:
    own = dry_run.folder.resolve() / RANK_FILES
    stack.callback(remove_tree, own)
    for parent in (dry_run.folder.resolve(), Path(tempfile.gettempdir()), _SHARED_MEMORY):
        base = own if parent == own.parent else _temporary(parent)
        if base is None:
            continue
        base.mkdir(mode=0o700, exist_ok=True)
        for kind in ("root", "user"):
            if _can_mount(base, kind, dry_run):
                if base != own:
                    stack.callback(remove_tree, base)
                return base, kind
        remove_tree(base)
    own.mkdir(mode=0o700, exist_ok=True)
    return own, None


def _temporary(parent: Path) -> Path | None:
    with contextlib.suppress(OSError):
        return Path(tempfile.mkdtemp(prefix="simcoll-", dir=parent))
    return None


def _can_mount(base: Path, kind: str, dry_run: DryRun) -> bool:
    """Whether a process can have overlays of the folders that programs write to, with their changes in ``base``."""
    pid = fork()
    if pid == 0:
        try:
            os._exit(0 if _covers(base, kind, dry_run) else 1)
        finally:
            os._exit(1)
    covers = os.waitpid(pid, 0)[1] == 0
    remove_tree(base / "layers")
    return covers


def _covers(base: Path, kind: str, dry_run: DryRun) -> bool:
    places = {Path.cwd(), Path.home(), Path(tempfile.gettempdir()), dry_run.script.absolute().parent}
    before = {place: os.stat(place).st_dev for place in places if os.access(place, os.W_OK)}
    try:
        mount_privately(base, "probe", dry_run.folder.resolve(), as_user=kind == "user")
    except OSError:
        return False
    inside = dry_run.folder.resolve()
    return all(os.stat(place).st_dev != device or inside in (place, *place.parents) for place, device in before.items())


def made_changes(sharing: FileSharing) -> dict[int, object]:
    """The changes that ranks have made known to others in this pass, by rank; not those of the first one to start.

    That one's files are found by all others in the same pass.
    """
    found: dict[int, object] = {}
    for path in (sharing.base / "journals").glob(f"*.{sharing.run}"):
        rank = int(path.name.partition(".")[0])
        entries, _ = read_journal(path)
        if entries and not sharing.progress.was_first(rank):
            found[rank] = [(entry.counts, [(one.path, one.kind) for one in entry.changes]) for entry in entries]
    return found
