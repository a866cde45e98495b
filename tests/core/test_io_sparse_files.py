"""A file made sparse has the same bytes, and takes less room."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.core.io import make_sparse

CONTENTS = {
    "nothing": b"",
    "a little": b"abc",
    "zeros alone": bytes(300_000),
    "an end in zeros": b"abc" + bytes(300_000),
    "a middle and an end": bytes(70_000) + b"x" + bytes(200_000) + b"y",
}


@pytest.mark.parametrize("name", CONTENTS)
def test_the_bytes_stay(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENTS[name])
    make_sparse(path)
    assert path.read_bytes() == CONTENTS[name]
    assert list(tmp_path.iterdir()) == [path]


def test_zeros_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" + bytes(1 << 22))
    before = path.stat().st_blocks
    make_sparse(path)
    assert path.stat().st_blocks <= before // 8


def test_an_absent_file_is_an_error_of_the_systems(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_sparse(tmp_path / "file")
