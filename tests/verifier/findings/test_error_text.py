"""The text of exceptions: what existing tools match on, and what only simcoll says."""

from __future__ import annotations

import re

import pytest

from simcoll.core.record import Group, Record, Source
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.findings.error_text import mismatch_text, missing_text

GROUP = Group("0", "default_pg", (0, 1, 2))
TENSORS = (Buffer((20, 10), "float32"),)
REDUCE = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")
LINE = Source("train.py", 41, "step", "dist.all_reduce(x)")


def text(mine: int, *calls: Call, group: Group = GROUP) -> str:
    records = {rank: Record("0", 7, call, LINE) for rank, call in enumerate(calls)}
    return mismatch_text(group, records, mine, compare(group, records))


def test_the_wording_of_c10d_comes_first() -> None:
    said = text(1, REDUCE, Call("reduce", "reduce", TENSORS, TENSORS, reduce_op="sum", root=0), REDUCE)
    assert said.startswith(
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
        "SequenceNumber=7, OpType=REDUCE, TensorShape=[20, 10], TensorDtypes=Float, TensorDeviceTypes=TensorOptions("
    )
    assert "), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE," in said
    assert "Collectives differ in the following aspects:   Op type: REDUCEvs ALLREDUCE" in said


def test_a_barrier_has_no_tensors() -> None:
    said = text(0, REDUCE, Call("barrier", "barrier"), REDUCE)
    assert "Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=BARRIER). " in said


def test_pytorchs_own_check_passes() -> None:
    said = text(1, REDUCE, Call("barrier", "barrier"))
    for part in ("BARRIER", "SequenceNumber", "Collectives differ in the following"):
        assert part in said
    integers = (Buffer((2,), "int64"),)
    said = text(
        1,
        Call("scatter", "scatter", (Buffer((1,), "int64"),) * 2, (Buffer((1,), "int64"),), root=0),
        Call("scatter", "scatter", (), integers, root=0),
        group=Group("0", "", (0, 1)),
    )
    for part in ("SCATTER", "[2]", "cpu", "Long"):
        assert part in said


def test_aspects_that_c10d_does_not_know() -> None:
    said = text(0, REDUCE, Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="max"), REDUCE)
    assert "Reduce op: sumvs max" in said


def test_simcolls_own_lines_name_every_side() -> None:
    said = text(0, REDUCE, Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="max"), REDUCE)
    lines = said.splitlines()
    assert lines[1].startswith("simcoll: SC104 reduce-op-mismatch in group 0 (default_pg, ranks 0-2), collective 7: ")
    assert "  ranks 0 and 2: all_reduce(float32[20, 10] on cpu, sum)" in lines
    assert "  rank 1: all_reduce(float32[20, 10] on cpu, max)" in lines
    assert "    rank 1 at train.py:41 in step: dist.all_reduce(x)" in lines
    assert "  culprits: rank 1 (by majority)" in lines


def test_two_ranks_say_that_the_report_may_know_more() -> None:
    said = text(0, REDUCE, Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="max"))
    assert "  culprits: no majority of these ranks names one; the report on the whole job may" in said.splitlines()


def test_the_opponent_is_of_another_side() -> None:
    wrong = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="max")
    assert "but Rank 2 is" in text(0, REDUCE, REDUCE, wrong)
    assert "but Rank 2 is" in text(1, REDUCE, REDUCE, wrong)
    assert "but Rank 0 is" in text(2, REDUCE, REDUCE, wrong)


def test_ranks_in_a_subgroup_are_global() -> None:
    group = Group("3", "tp", (4, 6, 9))
    said = text(0, REDUCE, Call("barrier", "barrier"), REDUCE, group=group)
    assert "Rank 4 is running" in said
    assert "but Rank 6 is running" in said


def test_a_wait_that_a_closed_connection_ended_is_not_said_to_have_timed_out() -> None:
    record = Record("0", 7, REDUCE, LINE)
    closed = missing_text(GROUP, 0, [1], 1_800_000, record, waited_ms=30)
    assert "failed to pass monitoredBarrier in 30 ms; Connection closed by peer" in closed
    assert "1800000" not in closed
    assert "rank 1 has not come to all_reduce (collective 7) and the connection has closed" in closed
    assert closed.splitlines()[0].endswith("Connection closed by peer.")
    assert "Timed out" not in closed
    late = missing_text(GROUP, 0, [1], 2000, record, waited_ms=1990)
    assert "rank 1 has not come to all_reduce (collective 7) within the timeout of 2000 ms" in late


def test_missing_ranks_on_rank_0_and_elsewhere() -> None:
    record = Record("0", 7, REDUCE, LINE)
    first = missing_text(GROUP, 0, [1, 2], 2000, record, {1: Record("0", 6, REDUCE, LINE)})
    other = missing_text(GROUP, 2, [1], 2000, record)
    assert "Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms" in first
    assert "rank 1 was last seen in all_reduce #6 of group 0" in first
    assert "Please check rank 0 logs for faulty rank" in other
    for said in (first, other):
        assert re.search(" (Timed out|closed|timeout) ", said)
        assert "SC201 missing-rank" in said
        assert "train.py:41" in said


def many(ranks: int = 4096) -> list[Call]:
    """Calls of very many ranks that disagree in every way: in their ops, in each size, in long lists of splits."""

    def call(rank: int) -> Call:
        tensors = (Buffer((rank + 1, 10), "float32"),) * (ranks if rank == 5 else 1)
        if rank % 3:
            return Call("all_reduce", "allreduce", tensors, tensors, reduce_op="sum")
        splits = tuple(range(ranks))
        return Call("all_to_all_single", "alltoall_base", tensors, tensors, input_splits=splits, output_splits=splits)

    return [call(rank) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("mine", [0, 5, 4095])
def test_an_exception_on_thousands_of_ranks_can_be_read(mine: int) -> None:
    said = text(mine, *many(), group=Group("0", "default_pg", tuple(range(4096))))
    assert len(said) < 20_000
    assert max(map(len, said.splitlines())) < 10_000
    assert not re.search(r"(\d+, ){24}", said)


def test_missing_ranks_are_ranges_where_there_are_many() -> None:
    group = Group("0", "default_pg", tuple(range(4096)))
    absent = [rank for rank in range(1, 4096) if rank != 511]
    last = {rank: Record("0", 6 + rank % 2, REDUCE, LINE) for rank in absent}
    said = missing_text(group, 0, absent, 2000, Record("0", 8, REDUCE, LINE), last)
    assert "Ranks 1-510, 512-4095 failed to pass monitoredBarrier in 2000 ms" in said
    assert said.count("were last seen in") == 2
    assert len(said) < 2_000
    few = missing_text(group, 0, list(range(1, 17)), 2000)
    assert f"Ranks {', '.join(map(str, range(1, 17)))} failed" in few
