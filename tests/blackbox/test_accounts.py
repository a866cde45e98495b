"""What launchers and monitors leave beside the records: written, read back, and refused where it is something else."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from simcoll.blackbox.accounts import (
    LaunchAccount,
    LaunchedRank,
    outcome_of,
    read_launch,
    read_stall,
    read_stalls,
    together,
    write_stall,
)
from simcoll.core.record import Source
from simcoll.core.trace import RankExit, Stall

HERE = Source("train.py", 9, "evaluate", "event.wait()")


def test_an_account_comes_back_as_it_was(tmp_path: Path) -> None:
    stall = Stall(5, 9, {3: HERE}, frozenset({0, 1}), frozenset({2}), frozenset({3}), frozenset({1}), over=False)
    write_stall(tmp_path / "stall.json", stall)
    assert read_stall(tmp_path / "stall.json") == stall


def test_the_accounts_of_two_nodes_are_one() -> None:
    first = Stall(5, 9, {0: HERE}, blocked=frozenset({0}), over=False)
    second = Stall(4, 8, {3: HERE}, stopped=frozenset({3}), connecting=frozenset({2}))
    assert together([first, second]) == Stall(
        4,
        9,
        {0: HERE, 3: HERE},
        blocked=frozenset({0}),
        stopped=frozenset({3}),
        connecting=frozenset({2}),
        over=True,
    )
    assert together([]) is None


def test_the_accounts_of_hosts_whose_clocks_are_apart_are_of_one_time(tmp_path: Path) -> None:
    for host, ahead in (("a", 0), ("b", 30)):
        (tmp_path / f"launch-{host}.json").write_text(json.dumps({"ranks": [], "error": None, "host": host}))
        write_stall(tmp_path / f"stall-{host}.json", Stall(5 + ahead, 9 + ahead))
    found = read_stalls(sorted(tmp_path.glob("stall*")), {"b": -30})
    assert found is not None
    assert (found.since_ns, found.seen_ns) == (5, 9)


GOOD = (
    '{"schema": "simcoll.stall/1", "since_ns": 1, "seen_ns": 2, "over": true, '
    '"blocked": [], "busy": [], "stopped": [], '
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 9000,
        '{"schema": "simcoll.stall/2"}',
        GOOD + '"places": []}',
        GOOD + '"places": {"x": ["f", 1, "g", "c"]}}',
        GOOD + '"places": {"1": ["f", "1", "g", "c"]}}',
        GOOD + '"places": {"1": "f"}}',
        GOOD + '"connecting": 1, "places": {}}',
        GOOD.replace("[]", '["0"]', 1) + '"places": {}}',
        "\0",
    ],
)
def test_what_is_no_account_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stall.json"
    path.write_text(text)
    assert read_stall(path) is None
    assert read_stall(tmp_path / "absent.json") is None


def test_the_end_of_a_rank_that_was_stopped_is_not_its_own() -> None:
    ranks = (LaunchedRank(0, 1, 5), LaunchedRank(1, -signal.SIGKILL, 7, stopped=True), LaunchedRank(2, None))
    outcome = outcome_of([LaunchAccount(ranks)])
    assert outcome.ranks == {0: RankExit(1, 5), 1: RankExit(-signal.SIGKILL, 7, stopped=True), 2: RankExit(None)}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ranks": [{}]}', '{"ranks": [{"rank": "0"}]}', "[" * 9000])
def test_an_account_that_is_not_one_is_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "launch.json"
    path.write_text(text)
    assert read_launch(path) == LaunchAccount()


def test_an_account_is_read(tmp_path: Path) -> None:
    rank = {"rank": 1, "exit_code": -9, "ended_ns": 4, "stopped": False}
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({"ranks": [rank], "error": None, "interrupted": "SIGINT"}))
    assert read_launch(path) == LaunchAccount((LaunchedRank(1, -9, 4),), None, "SIGINT")
