"""Which of the ranks that raise one error print it, and where the others leave theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simcoll.core.record import Group
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.recorder import told_once
from simcoll.recorder.told_once import VARIABLE, ToldErrors, kept_instead
from simcoll.verifier.findings.error_text import message_text
from simcoll.verifier.findings.finding import Finding, Severity

BOX = "rank00003.simcoll"
KEPT = "rank00003.traceback.txt"


@pytest.fixture
def told() -> Iterator[ToldErrors]:
    errors = ToldErrors()
    errors.begin()
    yield errors
    errors.end()


def mismatch(text: str = "ranks differ") -> CollectiveMismatchError:
    try:
        raise CollectiveMismatchError(text)
    except CollectiveMismatchError as error:
        return error


@pytest.mark.usefixtures("told")
def test_the_first_rank_prints_and_the_next_one_keeps_its_own(tmp_path: Path) -> None:
    assert not kept_instead(mismatch(), tmp_path / "rank00001.simcoll")
    assert kept_instead(mismatch("as this rank says it"), tmp_path / BOX)
    assert [path.name for path in tmp_path.iterdir()] == [KEPT]
    text = (tmp_path / KEPT).read_text()
    assert "in mismatch" in text
    assert "CollectiveMismatchError: as this rank says it" in text


@pytest.mark.usefixtures("told")
def test_every_other_error_is_printed(tmp_path: Path) -> None:
    errors = mismatch(), MissingRankError("absent", (1,)), RuntimeError("the program's own"), RuntimeError("another")
    assert not any(kept_instead(error, tmp_path / BOX) for error in errors)


@pytest.mark.usefixtures("told")
def test_an_error_that_torch_raises_with_the_same_text_in_it_is_the_same(tmp_path: Path) -> None:
    group = Group("0", "default_pg", (0, 1, 2))
    found = [Finding("SC102", Severity.ERROR, "differ", group=group, sequence=number) for number in (1009, 1010)]
    raised = [CollectiveMismatchError(message_text(one), (one,)) for one in found]
    wrapped = [
        RuntimeError(f"Got the following error when running the callback: CollectiveMismatchError: {error}\n\nAt:\n")
        for error in raised
    ]
    errors = raised[0], wrapped[0], wrapped[1], raised[1]
    assert [kept_instead(error, tmp_path / BOX) for error in errors] == [False, True, False, True]


def test_ranks_that_start_again_print_again(tmp_path: Path, told: ToldErrors) -> None:
    assert [kept_instead(mismatch(), tmp_path / BOX) for _ in range(2)] == [False, True]
    told.begin()
    assert not kept_instead(mismatch(), tmp_path / BOX)
    told.end()
    assert [kept_instead(mismatch(), tmp_path / BOX) for _ in range(2)] == [False, False]


@pytest.mark.usefixtures("told")
def test_a_rank_with_a_log_of_its_own_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = os.environ[VARIABLE].split(":", 1)
    monkeypatch.setenv(VARIABLE, f"{int(launcher[0]) + 1}:{launcher[1]}")
    assert [kept_instead(mismatch(), tmp_path / BOX) for _ in range(2)] == [False, False]


@pytest.mark.usefixtures("told")
def test_an_error_that_cannot_be_kept_is_printed(tmp_path: Path) -> None:
    assert [kept_instead(mismatch(), tmp_path / "gone" / BOX) for _ in range(2)] == [False, False]


def test_a_hook_of_the_program_has_its_say() -> None:
    assert told_once.prints_as_python(None)
    assert not told_once.prints_as_python(print)
