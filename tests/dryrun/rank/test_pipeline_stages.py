"""The metadata that pipeline stages of a dry run find: written, still to come, or never."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from simcoll.dryrun.rank import main
from simcoll.dryrun.rank.pipeline_stages import StageMetadata, stage_name

META = {"shape": [2, 8], "stride": [8, 1], "dtype": "float32", "requires_grad": True}


def never(rank: int) -> bool:
    return False


def test_a_stage_reads_what_another_rank_has_published(tmp_path: Path) -> None:
    meta = SimpleNamespace(shape=(2, 8), stride=(8, 1), dtype=torch.float32, requires_grad=True)
    StageMetadata(tmp_path, 0, never).publish([meta], 1)
    assert StageMetadata(tmp_path, 1, never).read(0, 1) == [META]


def test_a_stage_waits_for_a_rank_as_long_as_it_runs(tmp_path: Path) -> None:
    looks = []

    def is_running(rank: int) -> bool:
        looks.append(rank)
        if len(looks) == 3:
            (tmp_path / stage_name(0, 1)).write_text(json.dumps([META]))
        return True

    assert StageMetadata(tmp_path, 1, is_running).read(0, 1) == [META]
    assert looks == [0, 0, 0]


def test_a_stage_does_not_wait_for_a_rank_that_has_ended(tmp_path: Path) -> None:
    answers = iter([True, False])
    with pytest.raises(RuntimeError, match="rank 1: stage 1 of a pipeline asks rank 0"):
        StageMetadata(tmp_path, 1, lambda rank: next(answers)).read(0, 1)
    assert next(answers, None) is None


def test_a_rank_runs_as_long_as_it_holds_its_log(tmp_path: Path) -> None:
    dry_run: Any = SimpleNamespace(folder=tmp_path)
    assert not main._is_running(dry_run, 3), "no log: it has not begun"
    with open(tmp_path / main.log_name(3), "wb") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert main._is_running(dry_run, 3)
    assert not main._is_running(dry_run, 3)
