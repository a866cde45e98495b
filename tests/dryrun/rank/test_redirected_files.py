"""Redirected file functions show a program what the real ones would have, and leave the real files as they are."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.redirected_files import redirect_files

Action = Callable[[Path], object]


def _write(path: Path, text: str, mode: str = "w") -> None:
    with open(path, mode, encoding="utf-8") as file:
        file.write(text)


def _truncate(folder: Path) -> None:
    os.truncate(folder / "file", 2)


def _descriptor(folder: Path) -> None:
    number = os.open(folder / "made", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(number, b"made")
    os.close(number)


def _remove_and_make_again(folder: Path) -> None:
    shutil.rmtree(folder / "sub")
    os.mkdir(folder / "sub")


def _in_steps(*actions: Action) -> Action:
    def act(folder: Path) -> list[object]:
        return [action(folder) for action in actions]

    return act


ACTIONS: dict[str, Action] = {
    "read": lambda folder: (folder / "file").read_text(encoding="utf-8"),
    "written": lambda folder: _write(folder / "file", "other"),
    "appended": lambda folder: _write(folder / "file", "more", "a"),
    "changed": lambda folder: _write(folder / "file", "x", "r+"),
    "made": lambda folder: _write(folder / "new", "new", "x"),
    "made where one is": lambda folder: _write(folder / "file", "new", "x"),
    "in a new folder": _in_steps(
        lambda folder: os.makedirs(folder / "a" / "b"), lambda folder: _write(folder / "a/b/c", "deep")
    ),
    "in no folder": lambda folder: _write(folder / "nowhere" / "file", "lost"),
    "through a link": lambda folder: _write(folder / "link", "by link"),
    "by descriptor": _descriptor,
    "truncated": _truncate,
    "removed": lambda folder: os.remove(folder / "file"),
    "removed twice": _in_steps(lambda folder: os.remove(folder / "file"), lambda folder: os.remove(folder / "file")),
    "removed and read": _in_steps(
        lambda folder: os.remove(folder / "file"), lambda folder: open(folder / "file").close()
    ),
    "removed and made": _in_steps(
        lambda folder: os.remove(folder / "file"), lambda folder: _write(folder / "file", "again")
    ),
    "a folder removed": lambda folder: os.remove(folder / "sub"),
    "a full folder": lambda folder: os.rmdir(folder / "sub"),
    "a tree": lambda folder: shutil.rmtree(folder / "sub"),
    "a tree made again": _remove_and_make_again,
    "a folder that is there": lambda folder: os.mkdir(folder / "sub"),
    "renamed": lambda folder: os.rename(folder / "file", folder / "renamed"),
    "replaced": lambda folder: os.replace(folder / "file", folder / "sub" / "inner"),
    "a folder renamed": lambda folder: os.rename(folder / "sub", folder / "moved"),
    "a folder onto a full one": _in_steps(
        lambda folder: shutil.copytree(folder / "sub", folder / "other"),
        lambda folder: os.rename(folder / "sub", folder / "other"),
    ),
    "a file onto a folder": lambda folder: os.rename(folder / "file", folder / "sub"),
    "nothing renamed": lambda folder: os.rename(folder / "nothing", folder / "something"),
    "by pathlib": lambda folder: (folder / "file").rename(folder / "by-pathlib").name,
    "linked": lambda folder: os.symlink("sub/inner", folder / "second"),
    "linked where one is": lambda folder: os.symlink("sub/inner", folder / "file"),
    "a copy": lambda folder: shutil.copy2(folder / "file", folder / "copy").name,
    "a tree copied": lambda folder: shutil.copytree(folder / "sub", folder / "tree").name,
    "moved": lambda folder: Path(shutil.move(folder / "sub", folder / "moved")).name,
    "modes": _in_steps(
        lambda folder: os.chmod(folder / "file", 0o600), lambda folder: oct(os.stat(folder / "file").st_mode)
    ),
    "asked": lambda folder: (
        os.path.isdir(folder / "sub"),
        os.path.islink(folder / "link"),
        os.path.getsize(folder / "file"),
    ),
    "not a folder": lambda folder: os.listdir(folder / "file"),
    "listed after changes": _in_steps(
        lambda folder: os.remove(folder / "sub" / "inner"),
        lambda folder: _write(folder / "sub" / "new", "new"),
        lambda folder: sorted(entry.name for entry in os.scandir(folder / "sub") if entry.is_file()),
        lambda folder: sorted(os.listdir(os.fsencode(folder / "sub"))),
    ),
    "saved": _in_steps(
        lambda folder: torch.save(torch.ones(3), folder / "saved.pt"),
        lambda folder: torch.load(folder / "saved.pt").tolist(),
        lambda folder: os.remove(folder / "saved.pt"),
    ),
    "walked": lambda folder: sorted(name for _, folders, files in os.walk(folder) for name in (*folders, *files)),
}


def prepared(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("content", encoding="utf-8")
    (folder / "sub" / "inner").write_text("inner", encoding="utf-8")
    (folder / "link").symlink_to("file")
    return folder


def seen(folder: Path) -> dict[str, Any]:
    """All that a program finds below a folder."""
    found: dict[str, Any] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            key = os.path.relpath(path, folder)
            if os.path.islink(path):
                found[key] = os.readlink(path)
            else:
                found[key] = None if os.path.isdir(path) else pathlib.Path(path).read_bytes()
    return found


def outcome(action: Action, folder: Path) -> tuple[object, dict[str, Any]]:
    try:
        result = action(folder)
    except OSError as error:
        result = type(error).__name__, error.errno
    return result, seen(folder)


@pytest.mark.parametrize("name", ACTIONS)
def test_a_program_finds_what_it_did(name: str, tmp_path: Path) -> None:
    expected = outcome(ACTIONS[name], prepared(tmp_path / "plain" / "folder"))
    folder = prepared(tmp_path / "redirected" / "folder")
    before = seen(folder)
    with Patches() as patches:
        redirect_files(patches, tmp_path / "upper", tmp_path / "kept")
        found = outcome(ACTIONS[name], folder)
    assert found == expected
    assert seen(folder) == before


def test_a_kept_folder_is_real(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with Patches() as patches:
        redirect_files(patches, tmp_path / "upper", tmp_path / "kept")
        _write(tmp_path / "kept" / "record", "kept")
    assert (tmp_path / "kept" / "record").read_text(encoding="utf-8") == "kept"
