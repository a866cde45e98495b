"""The timeline: every call in its column, ranks that did the same in one row, who did otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Group, Record, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, Mark, Severity, Timeline
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.selection import Selection
from simcoll.verifier.views.timeline import timeline_of
from tests.support.traces import trace_of

SECOND = 10**9
TENSORS = (Buffer((4,), "float32"),)
WORLD = Group("0", "default_pg", (0, 1, 2))


def reduce(op: str = "sum") -> Call:
    return Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op=op)


def record(number: int, call: Call | None = None, state: State = State.COMPLETED, name: str = "0") -> Record:
    return Record(name, number, call or reduce(), state=state, scheduled_ns=number * SECOND)


def traces(*ranks: Sequence[Record], groups: Sequence[Group] = (WORLD,)) -> list[MemoryTrace]:
    return [trace_of(rank, len(ranks), groups, records, mode="record") for rank, records in enumerate(ranks)]


def drawn(job: Sequence[MemoryTrace], findings: Sequence[Finding] = (), **of: object) -> Timeline:
    selection = of.pop("selection", Selection())
    return timeline_of(job, findings, selection, range(len(job)), **of)  # type: ignore[arg-type]


def marks(timeline: Timeline) -> dict[tuple[int, ...], list[str]]:
    signs = {Mark.DONE: "", Mark.OPEN: "~", Mark.FAILED: "x", Mark.ABSENT: ".", Mark.OUTSIDE: " "}
    return {
        ranks: [cell.op[:5] + signs[cell.mark] + "!" * cell.differs for cell in cells] for ranks, cells in timeline.rows
    }


def test_ranks_that_did_the_same_share_a_row() -> None:
    one, two = [record(1), record(2, state=State.STARTED)], [record(1)]
    timeline = drawn(traces(one, one, two))
    assert marks(timeline) == {(0, 1): ["all_r", "all_r~"], (2,): ["all_r", "."]}
    assert [(column.number, column.time_ns) for column in timeline.columns] == [(1, SECOND), (2, 2 * SECOND)]
    assert timeline.total == 2


def test_who_states_otherwise_is_marked_wherever_it_happens() -> None:
    sums, one = [record(n) for n in (1, 2, 3)], [record(n, reduce("max" if n > 1 else "sum")) for n in (1, 2, 3)]
    timeline = drawn(traces(sums, one, sums))
    assert marks(timeline)[(1,)] == ["all_r", "all_r!", "all_r!"]
    assert marks(timeline)[(0, 2)] == ["all_r"] * 3


def test_no_majority_marks_both() -> None:
    timeline = drawn(traces([record(1)], [record(1, reduce("max"))], groups=[Group("0", "", (0, 1))]))
    assert list(marks(timeline).values()) == [["all_r!"]]


def test_a_finding_marks_its_culprits() -> None:
    same = [record(1), record(2)]
    finding = Finding("SC102", Severity.ERROR, "m", WORLD, 2, (0, 1, 2), (1,))
    assert marks(drawn(traces(same, same, same), [finding])) == {(0, 2): ["all_r"] * 2, (1,): ["all_r", "all_r!"]}


def test_groups_without_common_ranks_share_columns_and_others_do_not() -> None:
    pairs = [Group("a", "tp", (0, 1)), Group("b", "tp", (2, 3)), Group("c", "tp", (1, 2))]
    job = traces(
        [record(1, name="a")],
        [record(1, name="a"), record(1, name="c")],
        [record(1, name="b"), record(1, name="c")],
        [record(1, name="b")],
        groups=pairs,
    )
    timeline = drawn(job)
    assert [(column.group.name, column.groups) for column in timeline.columns] == [("a", 2), ("c", 1)]
    assert marks(timeline) == {(0, 3): ["all_r", " "], (1, 2): ["all_r", "all_r"]}


def test_only_the_selected_groups_have_columns() -> None:
    groups = [WORLD, Group("1", "tp", (0, 1, 2))]
    both = [record(1), record(1, name="1"), record(2)]
    timeline = drawn(traces(both, both, both, groups=groups), selection=Selection(("tp",)))
    assert [column.group.name for column in timeline.columns] == ["1"]


def test_columns_near_a_finding_are_kept_and_the_last_ones() -> None:
    many = [record(n) for n in range(1, 201)]
    finding = Finding("SC104", Severity.ERROR, "m", WORLD, 50, (0, 1, 2), (1,))
    timeline = drawn(traces(many, many, many), [finding], count=10)
    assert [column.number for column in timeline.columns] == [47, 48, 49, 50, 51, 196, 197, 198, 199, 200]
    assert timeline.columns[3].place == 49
    assert timeline.total == 200


@pytest.mark.parametrize(("count", "numbers"), [(1, [50]), (2, [50, 90]), (4, [49, 50, 89, 90])])
def test_where_few_columns_are_shown_those_of_findings_come_first(count: int, numbers: list[int]) -> None:
    many = [record(n) for n in range(1, 101)]
    findings = [Finding("SC104", Severity.ERROR, "m", WORLD, place, (0, 1, 2), (1,)) for place in (50, 90)]
    timeline = drawn(traces(many, many, many), findings, count=count)
    assert [column.number for column in timeline.columns] == numbers


def test_messages_have_columns_of_their_own() -> None:
    send = Record("0", 1, Call("send", "send", TENSORS, peer=1), p2p_sequence=1, scheduled_ns=2 * SECOND)
    timeline = drawn(traces([record(1), send], [record(1)], [record(1)]))
    assert [(column.number, column.message) for column in timeline.columns] == [(1, False), (1, True)]


def test_what_a_ring_dropped_is_not_absent() -> None:
    whole = traces([record(n) for n in (1, 2, 3)], [record(3)], [record(n) for n in (1, 2, 3)])
    job = [whole[0], replace(whole[1], dropped={0: 2}), whole[2]]
    assert marks(drawn(job))[(1,)] == [" ", " ", "all_r"]


def test_a_group_made_anew_has_columns_of_its_own() -> None:
    twice = [record(1), record(2), record(1), record(2)]
    assert drawn(traces(twice, twice, twice)).total == 4


def test_a_job_without_calls() -> None:
    assert drawn([]).columns == ()
    assert drawn(traces([], [], [])).columns == ()


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(["sum", "max"]), max_size=8), min_size=1, max_size=4), st.integers(1, 12))
def test_every_rank_has_one_row_and_a_cell_a_column(ranks: list[list[str]], count: int) -> None:
    members = Group("0", "", tuple(range(len(ranks))))
    job = traces(*([record(n, reduce(op)) for n, op in enumerate(ops, 1)] for ops in ranks), groups=[members])
    timeline = drawn(job, judge(job).findings, count=count)
    assert sorted(rank for row, _ in timeline.rows for rank in row) == list(range(len(ranks)))
    assert {len(cells) for _, cells in timeline.rows} == {len(timeline.columns)}
    assert len(timeline.columns) == min(count, max(map(len, ranks)))
    for row, cells in timeline.rows:
        made = [bool(cell.op) for cell in cells]
        assert all(made == [column.number <= len(ranks[rank]) for column in timeline.columns] for rank in row)
