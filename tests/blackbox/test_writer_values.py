"""Digests of values in a black box: every call may have one, and they leave room for all else."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.blackbox import format as layout
from simcoll.blackbox import read_black_box
from simcoll.blackbox.writer import BlackBoxWriter


def test_digests_leave_room_for_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "TABLE_LIMIT", 1 << 18)
    monkeypatch.setattr(layout, "TABLE_RESERVE", 1 << 12)
    writer = BlackBoxWriter(tmp_path / "rank00000.simcoll", rank=0, world_size=1, mode="record", records=16)
    for sequence in range(20_000):
        writer.event("values", group=0, sequence=sequence, sent={"hash": 1 << 60})
    writer.event("other")
    writer.close()
    box = read_black_box(tmp_path / "rank00000.simcoll")
    kinds = [event.kind for event in box.events]
    assert 0 < kinds.count("values") < 20_000
    assert kinds[-1] == "other"
    assert not box.problems
