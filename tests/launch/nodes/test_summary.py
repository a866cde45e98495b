"""What a node says of its ranks: whether they wait in their last call."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.blackbox import BlackBoxWriter, Slot
from simcoll.blackbox.format import ASYNCHRONOUS, AWAITED, HANDED_ON
from simcoll.core.processes import Processes
from simcoll.core.record import State
from simcoll.launch.nodes.files import BOX, FileKey
from simcoll.launch.nodes.summary import Places
from tests.support.jobs import LINES, WORLD, all_reduce


@pytest.mark.parametrize(
    ("flags", "asleep", "waits"),
    [(AWAITED, False, True), (HANDED_ON, True, True), (HANDED_ON, False, False), (0, True, False)],
    ids=["a thread waits", "asleep with a future", "computing with a future", "asleep"],
)
def test_a_rank_waits_where_a_thread_does_or_for_its_future_while_it_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, asleep: bool, waits: bool
) -> None:
    path = tmp_path / "rank00000.simcoll"
    box = BlackBoxWriter(path, rank=0, world_size=4, mode="record", records=16)
    group, call, line = box.group(WORLD), box.signature(all_reduce(8)), box.source(LINES[0])
    box.mark(box.schedule(Slot(group, 1, call, line, state=State.STARTED, flags=ASYNCHRONOUS | flags)), flags)
    monkeypatch.setattr(Processes, "asleep", lambda *process: asleep)
    [place] = Places().look({FileKey(BOX, 0): path}).values()
    assert (place.text, place.waits) == ("started all_reduce (collective 1 of group 0)", waits)
    box.close()
