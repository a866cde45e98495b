"""Files that are written whole or not at all, and what is no file and stays what it is."""

import os

import pytest

from simcoll.core.io import written_whole


def test_a_file_has_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    with written_whole(path) as place:
        place.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["report.html"]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), written_whole(path) as place:
        place.write_text("ha\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_name_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("\N{GRINNING FACE}" * 63)
    with written_whole(path) as place:
        place.write_text("whole")
    assert path.read_text() == "whole"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(tmp_path, there):
    """As root, a file that takes the place of /dev/stdout would be there for everybody."""
    file, link = tmp_path / "file", tmp_path / "stdout"
    if there:
        file.write_text("old")
    link.symlink_to(file)
    with written_whole(link) as place:
        place.write_text("new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_device_stays_a_device(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with written_whole(pipe) as place:
        assert place == pipe
    assert pipe.is_fifo()
