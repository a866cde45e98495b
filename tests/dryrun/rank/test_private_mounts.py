"""Folders move within an overlay, as they do on the file systems below it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.private_mounts import let_folders_move

SHARED_MEMORY = Path("/dev/shm")  # another file system than that of tests


def refuse(source: object, target: object) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fspath(str(source)))


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Patches:
    """``os.rename`` as in an overlay without redirect_dir."""
    monkeypatch.setattr(os, "rename", refuse)
    patches = Patches()
    let_folders_move(patches)
    return patches


def folder(place: Path) -> Path:
    (place / "inner").mkdir(parents=True)
    (place / "inner" / "file").write_text("content", encoding="utf-8")
    (place / "link").symlink_to("inner/file")
    return place


def test_a_folder_moves(refusing: Patches, tmp_path: Path) -> None:
    with refusing:
        os.rename(folder(tmp_path / "old"), tmp_path / "new")
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "new" / "link").is_symlink()
    assert (tmp_path / "new" / "link").read_text(encoding="utf-8") == "content"


def test_a_folder_replaces_an_empty_one_only(refusing: Patches, tmp_path: Path) -> None:
    full, empty = folder(tmp_path / "full"), tmp_path / "empty"
    empty.mkdir()
    with refusing:
        with pytest.raises(OSError, match="not empty") as failed:
            os.rename(folder(tmp_path / "old"), full)
        assert failed.value.errno == errno.ENOTEMPTY
        os.rename(tmp_path / "old", empty)
    assert (empty / "inner" / "file").exists()


def test_a_file_does_not_move(refusing: Patches, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refusing, pytest.raises(OSError, match="cross-device"):
        os.rename(tmp_path / "file", tmp_path / "other")


def test_another_file_system_is_still_another(refusing: Patches, tmp_path: Path) -> None:
    if not SHARED_MEMORY.is_dir() or SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this system has one file system")
    with refusing, pytest.raises(OSError, match="cross-device"):
        os.rename(folder(tmp_path / "old"), SHARED_MEMORY / f"simcoll-test-{os.getpid()}")
