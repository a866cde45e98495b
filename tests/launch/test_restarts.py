"""Whether ranks are started again: what advice forbids, and where; real jobs are in tests/cli/test_run_advice.py."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from simcoll.launch.restarts import RestartByCause
from simcoll.verifier.findings.causes import Advice, Cause, Evidence, Restart, Strength, Suspicion
from tests.support.jobs import write_job

HERE = socket.gethostname()


def advice(restart: Restart, *hosts: str) -> Advice:
    evidence = (Evidence("SC104", "rank 2 reduces with max"),)
    return Advice(Suspicion("a rule", Cause.MACHINE, Strength.STRONG, restart, evidence, hosts=hosts))


def asked(folder: Path, found: Advice | Exception | None, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, list[str]]:
    def judged(self: RestartByCause) -> Advice | None:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(RestartByCause, "_advice", judged)
    said: list[str] = []
    return RestartByCause(folder, said.append).forbids(), said


@pytest.mark.parametrize(
    ("found", "forbidden"),
    [
        (advice(Restart.NO), True),
        (advice(Restart.YES), False),
        (advice(Restart.UNKNOWN), False),
        (advice(Restart.WITHOUT_HOSTS, HERE, "other"), True),
        (advice(Restart.WITHOUT_HOSTS, "other"), False),
    ],
    ids=["no", "yes", "unknown", "without this host", "without another host"],
)
def test_what_is_forbidden(found: Advice, forbidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, [line] = asked(tmp_path, found, monkeypatch)
    assert answer is forbidden
    assert line.startswith("the ranks are not started again" if forbidden else "the ranks are started again")
    assert line.endswith("cause: machine (strong evidence: rank 2 reduces with max)")


def test_without_advice_they_are_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(tmp_path, None, monkeypatch) == (False, [])


def test_records_that_cannot_be_judged_forbid_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, [line] = asked(tmp_path, ValueError("torn"), monkeypatch)
    assert not answer
    assert line == "this attempt cannot be judged (ValueError: torn); the ranks are started again"


def test_an_empty_folder_gives_no_advice(tmp_path: Path) -> None:
    assert not RestartByCause(tmp_path, print).forbids()


@pytest.mark.parametrize(("world", "told"), [(4, ""), (8, "; judged by the records of ranks 0-3 of 8 alone")])
def test_what_was_judged_is_said_where_it_is_not_all(world: int, told: str, tmp_path: Path) -> None:
    """Nodes that share no folder keep their records to themselves until the job ends."""
    said: list[str] = []
    restarts = RestartByCause(tmp_path / "job", said.append)
    write_job(tmp_path / "job", wrong=[2])
    account = tmp_path / "job" / "launch.json"
    account.write_text(account.read_text().replace('"world_size": 4', f'"world_size": {world}'))
    assert restarts.forbids()
    [line] = said
    assert line.endswith(f"){told}")
