"""Bus bandwidth, from the times that devices told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Group, Record, State
from simcoll.core.trace import Trace
from simcoll.reports.overview import bandwidth_text
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.agreement.columns import columns_of
from simcoll.verifier.findings.finding import Bandwidth
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.summary import bandwidths
from tests.support.documents import valid_report
from tests.support.traces import trace_of

MICROSECOND = 1000
MIB = 1 << 20
TENSOR = (Buffer((MIB // 4,), "float32", "cuda"),)
REDUCE = Call("all_reduce", "allreduce", TENSOR, TENSOR, reduce_op="sum")
GATHER = Call("all_gather", "_allgather_base", TENSOR, (Buffer((MIB,), "float32", "cuda"),))


def record(number: int, began: int, took: int, call: Call = REDUCE, **of: object) -> Record:
    """A call that its device began and ended then (microseconds of its own clock)."""
    times = {"scheduled_ns": 1, "started_ns": began * MICROSECOND, "finished_ns": (began + took) * MICROSECOND}
    stated = {"state": State.COMPLETED, "on_device": True} | times | of
    return Record("0", number, call, **stated)  # type: ignore[arg-type]


def found(ranks: Sequence[Sequence[Record]], size: int | None = None) -> tuple[Bandwidth, ...]:
    group = Group("0", "default_pg", tuple(range(size or len(ranks))))
    traces: list[Trace] = [trace_of(rank, len(group.ranks), [group], calls) for rank, calls in enumerate(ranks)]
    return bandwidths(columns_of(traces))


def test_the_time_of_a_collective_is_that_of_the_rank_that_came_last() -> None:
    early, last = [record(1, 100, 900)], [record(1, 5_000_000, 100)]
    [bandwidth] = found([early, last])
    assert (bandwidth.op, bandwidth.bytes, bandwidth.size, bandwidth.calls) == ("all_reduce", MIB, 2, 1)
    assert bandwidth.seconds == pytest.approx(100e-6)
    # nccl-tests' factor of all_reduce on two ranks is 1.
    assert bandwidth.bus_bandwidth == pytest.approx(MIB / 100e-6)


def test_each_op_and_size_has_a_row_those_that_took_most_time_first() -> None:
    calls = [record(number, 1000 * number, 100) for number in (1, 2, 3)]
    calls += [record(4, 9000, 300, GATHER), record(5, 10_000, 150)]
    rows = found([calls] * 4)
    assert [(row.op, row.bytes, row.calls) for row in rows] == [("all_reduce", MIB, 4), ("all_gather", 4 * MIB, 1)]
    assert rows[0].bus_bandwidth == pytest.approx(1.5 * MIB / 100e-6)
    assert rows[0].slowest == pytest.approx(150e-6)
    assert rows[0].sequence == 5
    assert rows[1].bus_bandwidth == pytest.approx(0.75 * 4 * MIB / 300e-6)


@pytest.mark.parametrize(
    "change",
    [{"on_device": False}, {"state": State.STARTED, "finished_ns": 0}, {"finished_ns": 1}],
    ids=["the host's times", "it runs", "no time"],
)
def test_what_no_device_has_told_is_no_bandwidth(change: dict[str, object]) -> None:
    assert found([[record(1, 100, 100)], [record(1, 100, 100, **change)]]) == ()


def test_a_member_without_a_record_may_have_come_last() -> None:
    assert found([[record(1, 100, 100)]] * 2, size=3) == ()


def test_calls_that_ran_as_one_have_no_time_of_their_own() -> None:
    calls = [record(1, 100, 100), record(2, 300, 100), record(3, 300, 100), record(4, 500, 100)]
    [bandwidth] = found([calls] * 2)
    assert bandwidth.calls == 2


def test_a_report_says_it_in_words_and_in_json() -> None:
    group = Group("0", "default_pg", (0, 1))
    calls = [record(1, 100, 100), record(2, 300, 200)]
    report = judge([trace_of(rank, 2, [group], calls, mode="record") for rank in range(2)])
    document = valid_report(report)
    assert document["summary"]["bandwidths"][0]["bus_bandwidth"] > 0  # type: ignore[index,call-overload]
    assert report.summary is not None
    [row] = report.summary.bandwidths
    assert bandwidth_text(row) == (
        "all_reduce of 1 MiB on 2 ranks of default_pg: 6.99 GB/s bus bandwidth "
        "(median of 2; slowest 5.24 GB/s, #2 of group 0)"
    )


@given(st.data())
def test_no_rank_that_waits_makes_a_collective_slower(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 6))
    call = data.draw(st.sampled_from([REDUCE, GATHER]))
    took = data.draw(st.lists(st.integers(1, 10_000), min_size=ranks, max_size=ranks))
    clocks = data.draw(st.lists(st.integers(1, 10**9), min_size=ranks, max_size=ranks))
    [row] = found([[record(1, began, time, call)] for began, time in zip(clocks, took, strict=True)])
    expected = COLLECTIVES[call.op].traffic(ranks) * row.bytes / (min(took) * 1e-6)
    assert row.bus_bandwidth == pytest.approx(expected)
