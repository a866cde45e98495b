"""Ranks find each other's files in the order of collectives, the later change of one that has seen the earlier."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from simcoll.dryrun.rank.private_mounts import FolderLayer
from simcoll.dryrun.rank.shared_files import (
    FileSharing,
    GroupFiles,
    RankProgress,
    SharedFiles,
    journal_name,
    read_journal,
)


class Ranks:
    """Two ranks whose files are below folders of their own: the layers are the files themselves."""

    def __init__(self, base: Path, began_ns: int = 0) -> None:
        self.base, self.progress = base, RankProgress(2)
        self.groups: list[GroupFiles] = []
        for rank in range(2):
            (base / f"files{rank}").mkdir()
            self.progress.start(rank)
            sharing = FileSharing(base, True, None, self.progress, 0.0, began_ns=began_ns or time.time_ns())
            layers = [FolderLayer("", str(base / f"files{rank}"))]
            self.groups.append(SharedFiles(sharing, rank, str(base), layers, None).of_group([0, 1]))

    def entries(self, rank: int) -> list[list[str]]:
        """The paths of each entry that a rank has made."""
        entries, _ = read_journal(self.base / "journals" / journal_name(rank, 0))
        return [[change.path for change in entry.changes] for entry in entries]

    def meet(self) -> None:
        """Let both ranks make a collective, the first one first."""
        for group in self.groups:
            group.after(group.before())


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_a_file_is_made_known_once(ranks: Ranks) -> None:
    (ranks.base / "files0" / "state").write_text("new", encoding="utf-8")
    for _ in range(3):
        ranks.meet()  # at once: the file's time stamp may still be that of another change
    assert ranks.entries(0) == [["/state"]]


def test_each_change_is_made_known(ranks: Ranks) -> None:
    state = ranks.base / "files0" / "state"
    for text in ("one", "two", "two", "six"):
        state.write_text(text, encoding="utf-8")
        ranks.meet()
    state.unlink()
    ranks.meet()
    state.write_text("six", encoding="utf-8")
    ranks.meet()
    assert ranks.entries(0) == [["/state"]] * 6


def test_modes_and_times_of_files_are_made_known_and_are_the_same_in_each_pass(tmp_path: Path) -> None:
    times: list[list[int]] = []
    for number in range(2):
        base = tmp_path / str(number)
        base.mkdir()
        ranks = Ranks(base, began_ns=10**18)
        files = base / "files0"
        for name in ("b", "a"):
            (files / name).write_text(name, encoding="utf-8")
            os.utime(files / name, ns=(2 * 10**18 + len(times) * 5 + (name == "a"),) * 2)
        (files / "old").touch()
        os.utime(files / "old", ns=(77, 77))
        (files / "private").mkdir(mode=0o700)
        ranks.meet()
        times.append([(files / name).stat().st_mtime_ns for name in ("b", "a", "old")])
        os.chmod(files / "a", 0o755)
        os.chmod(files / "private", 0o750)
        ranks.meet()
        ranks.meet()
        assert [sorted(entry) for entry in ranks.entries(0)] == [["/a", "/b", "/old", "/private"], ["/a", "/private"]]
    assert times[0] == times[1] == [10**18, 10**18 + 1000, 77]
