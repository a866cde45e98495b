"""What a monitor saw, written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.blackbox.gather import read_stall, together, write_stall
from simcoll.core.record import Source
from simcoll.core.trace import Stall

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
