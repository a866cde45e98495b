"""Which of the nodes that share a folder leaves its report there."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from simcoll.cli.one_report import alone_in, is_told_already
from simcoll.verifier.findings.finding import RankState, RankStatus, Report, Verdict


def report(*ends: int | None) -> Report:
    ranks = [RankState(rank, RankStatus.FAILED, code) for rank, code in enumerate(ends)]
    return Report(Verdict.FAILED, len(ends), "detail", (), ranks)


@pytest.mark.parametrize(
    ("there", "mine", "told"),
    [((1, 1), (1, 1), True), ((1, 1), (1, None), True), ((1, None), (1, 1), False), ((None, 1), (1, None), False)],
)
def test_the_report_that_knows_more_ends_is_kept(
    tmp_path: Path, there: tuple[int | None, ...], mine: tuple[int | None, ...], told: bool
) -> None:
    ranks = [{"rank": rank, "exit_code": code} for rank, code in enumerate(there)]
    (tmp_path / "report.json").write_text(json.dumps({"ranks": ranks}))
    assert is_told_already(report(*mine), tmp_path, 0) == told


@pytest.mark.parametrize("text", [None, "torn", "[]", '{"ranks": 1}'])
def test_what_is_no_report_tells_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    assert not is_told_already(report(1), tmp_path, 0)


def test_the_report_of_an_earlier_run_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"ranks": [{"rank": 0, "exit_code": 1}]}))
    os.utime(tmp_path / "report.json", ns=(5, 5))
    assert not is_told_already(report(1), tmp_path, 6)


def test_nodes_take_turns(tmp_path: Path) -> None:
    inside = threading.Event()

    def another() -> None:
        with alone_in(tmp_path):
            inside.set()

    thread = threading.Thread(target=another)
    with alone_in(tmp_path):
        thread.start()
        assert not inside.wait(0.05)
    thread.join()
    assert inside.is_set()
    with alone_in(tmp_path / "missing"):
        pass
