"""The bar appears on a terminal only, and only for what takes a moment."""

import os
import pty
import sys

import pytest

from simcoll.cli import progress
from simcoll.cli.progress import progress_bar


def on_terminal(monkeypatch, **environment):
    """Draw ten steps on a pseudo-terminal; what it got."""
    for name, value in {"TERM": "xterm", "COLUMNS": "80", **environment}.items():
        monkeypatch.setenv(name, value)
    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar() as update:
            if update is not None:
                for done in range(1, 11):
                    update(done, 10)
        stream.write("end")
        stream.flush()
        text = b""
        while not text.endswith(b"end"):
            # A terminal hands out what it has in pieces.
            text += os.read(mine, 1 << 16)
    os.close(mine)
    return text.decode()


def test_nothing_where_there_is_no_terminal(capsys):
    with progress_bar() as update:
        assert update is None
    assert capsys.readouterr() == ("", "")


def test_nothing_for_what_is_quick(monkeypatch):
    assert on_terminal(monkeypatch) == "end"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_nothing_on_a_terminal_that_cannot(monkeypatch, environment):
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.0)
    assert on_terminal(monkeypatch, **environment) == "end"


def test_a_bar_for_what_takes_its_time(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.0)
    text = on_terminal(monkeypatch)
    assert "simcoll: reading" in text
    assert "judging" in text
    assert "\x1b[2K" in text.removesuffix("end")


def test_no_colour_is_respected(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.0)
    assert "\x1b[3" not in on_terminal(monkeypatch, NO_COLOR="1")
