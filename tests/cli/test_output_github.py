"""``--github``: annotations on stdout below the report, of the whole job as it is shown, and only where asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.errors import BAD_INPUT, FINDINGS
from tests.security.test_security import record


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("::")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    record(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_verify_annotates(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder.parent))
    assert main(["verify", ".", "--github"]) == FINDINGS
    finding, who = commands(capsys.readouterr().out)
    assert finding.startswith("::error file=train.py,line=3,title=SC104 reduce-op-mismatch::rank 0 reduces with sum")
    assert who.startswith(
        "::notice title=simcoll%3A who should act::Cause: the program, strong evidence.%0ARestart: no"
    )


def test_only_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["verify", "."]) == FINDINGS
    assert commands(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", [["verify", "."], ["preflight", "--world-size", "2", "train.py"]])
def test_it_does_not_go_with_json(command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command[0], "--github", "--json", *command[1:]]) == BAD_INPUT
    assert "--github does not go with --json" in capsys.readouterr().err
