"""The account of a dry run: what is written is read again, and whatever else lies there is no account."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simcoll.core.trace import SLOT, MemoryTrace
from simcoll.dryrun.account import ACCOUNT_NAME, Account, read_account, write_account
from simcoll.dryrun.endings import ProcessEnd

ENDS = {0: ProcessEnd(0, 1_000_000), 3: ProcessEnd(-9, 2_000_000, timed_out=True, place="a.py:3 in f")}
ACCOUNT = Account(8, 4, 600.0, None, 1 << 30, cuda=True, ends=ENDS, passes=("the values of 3 calls were known",))


def trace(rank: int, scheduled_ns: int, world_size: int = 8) -> MemoryTrace:
    slots = np.zeros(1, SLOT)
    slots["scheduled_ns"] = scheduled_ns
    return MemoryTrace(rank, world_size, "record", (), [], [], [], slots, {}, (), {}, frozenset())


@pytest.mark.parametrize("account", [ACCOUNT, replace(ACCOUNT, steps=3, memory=None, cuda=False, ends={}, passes=())])
def test_what_is_written_is_read(account: Account, tmp_path: Path) -> None:
    write_account(tmp_path, account)
    assert read_account(tmp_path) == account


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "simcoll.dry-run/2"},
        {"world_size": 0},
        {"world_size": True},
        {"world_size": 3},
        {"timeout": "600"},
        {"passes": [1]},
        {"passes": None},
        {"memory": -1},
        {"ends": {"0": 0}},
        {"ends": [{"rank": 0}]},
        {
            "ends": [
                {"rank": 0, "exit_code": "0", "time_ns": 1, "timed_out": False, "out_of_memory": False, "place": ""}
            ]
        },
        {"ends": [{"rank": 0, "exit_code": 0, "time_ns": 1, "timed_out": True, "out_of_memory": False, "place": 3}]},
        {"ends": [{"rank": -1, "exit_code": 0, "time_ns": 1, "timed_out": False, "out_of_memory": False, "place": ""}]},
    ],
    ids=str,
)
def test_what_is_wrong_makes_it_no_account(damage: dict[str, object], tmp_path: Path) -> None:
    write_account(tmp_path, ACCOUNT)
    path = tmp_path / ACCOUNT_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    assert read_account(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": "simcoll.dry-run/1"}', "[" * 100_000, "\udcff"])
def test_what_is_no_document_is_no_account(text: str, tmp_path: Path) -> None:
    (tmp_path / ACCOUNT_NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert read_account(tmp_path) is None


def test_a_folder_without_one_has_none(tmp_path: Path) -> None:
    assert read_account(tmp_path) is None


def test_records_of_another_job_in_the_folder_are_not_covered() -> None:
    assert ACCOUNT.covers([trace(0, 900_000), trace(3, 100)])
    assert not ACCOUNT.covers([trace(1, 100)])
    assert not ACCOUNT.covers([trace(0, 100, world_size=4)])
    assert not ACCOUNT.covers([trace(0, 5_000_000)])
