"""How late ranks came: within their own group, in steps of 9 %."""

from __future__ import annotations

import pytest

from simcoll.core.record import Group, Record, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.views import chart as charts
from simcoll.verifier.views.chart import Chart, chart_of
from simcoll.verifier.views.selection import Selection
from tests.support.traces import trace_of

BEGIN = 10**18
TENSORS = (Buffer((4,), "float32"),)
CALL = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")


def job(times: list[int], groups: list[Group]) -> list[MemoryTrace]:
    """One call of each rank in its group, at so many nanoseconds; 0 is an unknown time."""
    found = []
    for rank, (time, group) in enumerate(zip(times, groups, strict=True)):
        record = Record(group.name, 1, CALL, state=State.COMPLETED, scheduled_ns=time and BEGIN + time)
        found.append(trace_of(rank, len(times), (group,), [record], mode="record"))
    return found


def late(times: list[int], groups: list[Group]) -> list[int]:
    chart = chart_of(job(times, groups), (), Selection(), range(len(times)))
    assert isinstance(chart, Chart)
    return [int(byte) for byte in chart.late[:, 0]]


@pytest.mark.parametrize("microseconds", [1, 2, 100, 12_345, 1_000_000, 600_000_000])
def test_a_byte_is_within_nine_percent(microseconds: int) -> None:
    world = Group("0", "default_pg", (0, 1))
    first, second = late([1, 1 + microseconds * 1000], [world, world])
    assert first == 1
    assert 2 ** ((second - 1) / charts.STEPS) == pytest.approx(microseconds, rel=0.05)


def test_an_unknown_time_is_no_time() -> None:
    world = Group("0", "default_pg", (0, 1, 2))
    assert late([1000, 0, 1000], [world] * 3) == [1, 0, 1]


def test_ranks_are_late_in_their_own_group() -> None:
    pairs = [Group("a", "tp", (0, 1)), Group("b", "tp", (2, 3))]
    found = late([1000, 1000, 9 * 10**9, 9 * 10**9], [pairs[0], pairs[0], pairs[1], pairs[1]])
    assert found == [1, 1, 1, 1]


def test_too_many_calls_are_said_to_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MOST_TIMES", 1)
    world = Group("0", "default_pg", (0, 1))
    chart = chart_of(job([1, 2], [world, world]), (), Selection(), range(2))
    assert chart is not None
    assert chart.late.size == 0
    assert chart.notes == (charts.LATENESS_LEFT_OUT,)
