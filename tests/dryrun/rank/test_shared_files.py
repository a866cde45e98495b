"""Ranks find each other's files in the order of collectives, the later change of one that has seen the earlier."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.dryrun.rank.private_mounts import Layer
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

    def __init__(self, base: Path) -> None:
        self.base, self.progress = base, RankProgress(2)
        self.groups: list[GroupFiles] = []
        for rank in range(2):
            (base / f"files{rank}").mkdir()
            self.progress.start(rank)
            sharing = FileSharing(base, True, None, self.progress, 0.0)
            layers = [Layer("", str(base / f"files{rank}"))]
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
    assert ranks.entries(0) == [["/state"]] * 5
