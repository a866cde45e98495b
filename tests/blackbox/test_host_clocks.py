"""Clocks of hosts that are apart are told by the collectives that their ranks completed, and the times are moved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simcoll.blackbox import BlackBox, BlackBoxWriter, Slot, read_black_box
from simcoll.blackbox.accounts import LaunchAccount, LaunchedRank
from simcoll.blackbox.host_clocks import clock_leads, moved_box, with_one_clock
from simcoll.core.record import Group
from simcoll.spec.call import Call

GROUPS = [Group("0", "default_pg", (0, 1)), Group("1", "dp", (1, 2))]
SECOND = 10**9


def job(folder: Path, op: str = "all_reduce", apart_ns: int = 0) -> list[BlackBox]:
    """Three ranks, a host each; rank 1 has a group with each of the others, and is in each call ``apart_ns`` later."""
    found = []
    for rank in range(3):
        path = folder / f"rank{rank:05d}.simcoll"
        writer = BlackBoxWriter(path, rank=rank, world_size=3, mode="record", records=64)
        for group in GROUPS:
            if rank in group.ranks:
                place = writer.group(group)
                for number in range(1, 4):
                    writer.advance(writer.schedule(Slot(place, number, writer.signature(Call(op, "x")), 0)))
        writer.event("exception", type="ValueError", message="x")
        writer.step()
        box = replace(read_black_box(path), host="abc"[rank])
        times = box.slots
        for column, after in (("scheduled_ns", 0), ("finished_ns", SECOND // 10)):
            times[column] = box.created_ns + (np.arange(len(times)) % 3) * SECOND + after + (rank == 1) * apart_ns
        found.append(box)
    return found


def test_clocks_that_agree_are_left_alone(tmp_path):
    boxes = job(tmp_path, apart_ns=SECOND // 20)
    assert clock_leads(boxes) == {}
    assert with_one_clock(boxes, [])[0] is boxes


@pytest.mark.parametrize("lead", [30 * SECOND, -3600 * SECOND])
def test_a_clock_that_differs_is_told_also_over_a_third_host(tmp_path, lead):
    boxes = job(tmp_path)
    boxes[2] = moved_box(boxes[2], lead)
    accounts = [LaunchAccount((LaunchedRank(2, 1, boxes[2].created_ns),), host="c"), LaunchAccount(host="a")]
    leads = clock_leads(boxes)
    assert leads == {"c": pytest.approx(lead, abs=SECOND // 5)}
    moved, launches, (note,), later = with_one_clock(boxes, accounts)
    assert later == {host: -by for host, by in leads.items()}
    assert moved[:2] == boxes[:2]
    for box in (moved[2], boxes[0]):
        assert abs(int(box.slots["finished_ns"][0]) - boxes[1].created_ns) < SECOND
        events = {event.kind: event for event in box.events}
        assert abs(events["exception"].time_ns - boxes[1].created_ns) < 5 * SECOND
        assert abs(int(events["steps"].data["marks"].times[0]) - boxes[1].created_ns) < 5 * SECOND
    assert abs(launches[0].ranks[0].ended_ns - boxes[1].created_ns) < 5 * SECOND
    assert launches[1] is accounts[1]
    assert note.startswith("the clock of c is ")


def test_calls_that_one_rank_may_end_before_others_come_tell_nothing(tmp_path):
    boxes = job(tmp_path, "broadcast")
    boxes[2] = moved_box(boxes[2], 30 * SECOND)
    assert clock_leads(boxes) == {}


def test_a_group_that_was_made_again_tells_nothing(tmp_path):
    boxes = job(tmp_path)
    boxes[2] = moved_box(replace(boxes[2], groups=[*boxes[2].groups] * 2), 30 * SECOND)
    assert clock_leads(boxes) == {}
