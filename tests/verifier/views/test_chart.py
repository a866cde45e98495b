"""The chart: every call in its cell, the worst where cells are shared, findings where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import CallPlace, Finding, Mark, Severity, Side
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.chart import SEVERITIES, Chart, chart_of, coarser
from simcoll.verifier.views.selection import Selection
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1, 2))
TENSORS = (Buffer((4,), "float32"),)
STATES = {
    State.SCHEDULED: Mark.OPEN,
    State.STARTED: Mark.OPEN,
    State.COMPLETED: Mark.DONE,
    State.FAILED: Mark.FAILED,
    State.REJECTED: Mark.FAILED,
}


def record(number: int, state: State = State.COMPLETED, op: str = "all_reduce", name: str = "0") -> Record:
    reduce_op = "sum" if op == "all_reduce" else None
    return Record(
        name,
        number,
        Call(op, op, TENSORS, TENSORS, reduce_op=reduce_op),
        Source("train.py", 41, "step"),
        state,
        scheduled_ns=number * 10**9,
    )


def job(*ranks: list[Record], groups: tuple[Group, ...] = (WORLD,)) -> list[MemoryTrace]:
    return [trace_of(rank, len(ranks), groups, records, mode="record") for rank, records in enumerate(ranks)]


def charted(traces: list[MemoryTrace], most: int = 10**6, **selected: object) -> Chart:
    selection = Selection(**selected)  # type: ignore[arg-type]
    chart = chart_of(traces, judge(traces).findings, selection, range(len(traces)), most)
    assert chart is not None
    return chart


def marks(chart: Chart) -> list[list[str]]:
    return [[chart.kinds[kind].mark.value for kind in row] for row in chart.cells[chart.rows]]


def test_ranks_that_did_the_same_share_a_row() -> None:
    two = [record(1), record(2)]
    chart = charted(job(two, two, [record(1)]))
    assert chart.cells.shape == (2, 2)
    assert chart.rows.tolist() == [0, 0, 1]
    assert marks(chart) == [["done", "done"], ["done", "done"], ["done", "absent"]]


def test_a_kind_says_what_the_call_states_and_where() -> None:
    chart = charted(job([record(1)], [record(1)], [record(1)]))
    kind = chart.kinds[chart.cells[0, 0]]
    assert (kind.op, kind.said, kind.source) == (
        "all_reduce",
        "all_reduce(float32[4] on cpu, sum)",
        "train.py:41 in step",
    )


def test_kinds_are_sorted_from_harmless_to_bad() -> None:
    chart = charted(job([record(1), record(2, State.FAILED)], [record(1), record(2, State.STARTED)], [record(1)]))
    severities = [SEVERITIES.index(kind.mark) for kind in chart.kinds]
    assert severities == sorted(severities)


def test_a_finding_is_where_it_is() -> None:
    fine, odd = [record(n) for n in range(1, 5)], [record(n) for n in range(1, 5)]
    odd[2] = replace(odd[2], call=replace(odd[2].call, reduce_op="max"))
    chart = charted(job(fine, odd, fine))
    assert [(spot.finding, spot.column, spot.places) for spot in chart.spots] == [(0, 2, (1,))]


def test_a_finding_at_several_calls_is_at_each_of_them() -> None:
    pair, fine = Group("1", "pair", (0, 1)), [record(n) for n in range(1, 4)]
    traces = job([*fine, record(1, name="1")], [*fine, record(1, name="1")], fine, groups=(WORLD, pair))
    sides = (
        Side((0,), fine[0].call, place=CallPlace(pair, 1)),
        Side((1, 2), fine[0].call, place=CallPlace(WORLD, 3)),
        Side((2,), None, note="is somewhere else"),
    )
    waits = Finding("SC204", Severity.ERROR, "none can go on", sides=sides)
    for culprits, named in (((), [(0,), (1, 2)]), ((2,), [(), (2,)])):
        chart = chart_of(traces, [replace(waits, culprits=culprits)], Selection(), range(3))
        assert chart is not None
        found = sorted((chart.columns[spot.column].line, chart.columns[spot.column].number) for spot in chart.spots)
        assert len(set(found)) == 2
        assert [spot.places for spot in chart.spots] == named


def test_a_message_is_at_its_number_on_its_own_rank() -> None:
    sent = replace(record(0, op="send"), p2p_sequence=2)
    traces = job([record(1), sent], [record(1)], [record(1)])
    lone = Side((0, 1), sent.call, place=CallPlace.of(WORLD, sent, 0))
    chart = chart_of(traces, [Finding("SC304", Severity.ERROR, "lost", WORLD, sides=(lone,))], Selection(), range(3))
    assert chart is not None
    assert [(chart.columns[spot.column].message, spot.places) for spot in chart.spots] == [(True, (0,))]


def test_no_call_no_chart() -> None:
    traces = job([], [], [])
    assert chart_of(traces, (), Selection(), range(3)) is None


def test_only_what_is_selected() -> None:
    pair = Group("1", "pair", (0, 1))
    both = [record(1), record(1, name="1")]
    chart = charted(job(both, both, [record(1)], groups=(WORLD, pair)), groups=("pair",))
    assert [(group.name, number) for group, number in chart.groups] == [("1", 1)]
    assert chart.total == 1


@given(
    st.lists(st.lists(st.sampled_from(list(STATES)), max_size=12), min_size=2, max_size=3).filter(any),
    st.integers(1, 40),
)
def test_the_worst_of_shared_columns_shows_and_nothing_is_lost(ranks: list[list[State]], most: int) -> None:
    traces = job(*[[record(n, state) for n, state in enumerate(states, 1)] for states in ranks])
    exact, shared = charted(traces), charted(traces, most)
    wide = max(map(len, ranks))
    expected = [
        [STATES[states[n]].value if n < len(states) else "absent" if len(ranks) <= 3 else "" for n in range(wide)]
        for states in ranks
    ]
    assert marks(exact) == expected
    assert shared.total == exact.total == sum(column.span for column in shared.columns)
    starts = np.cumsum([0, *(column.span for column in shared.columns)])
    severity = {mark.value: place for place, mark in enumerate(SEVERITIES)}
    for fine, coarse in zip(marks(exact), marks(shared), strict=True):
        for place, mark in enumerate(coarse):
            assert mark == max(fine[starts[place] : starts[place + 1]], key=severity.__getitem__)


def test_what_shares_columns_is_said_and_findings_keep_theirs() -> None:
    fine, odd = ([record(n) for n in range(1, 4001)] for _ in range(2))
    odd[2500] = replace(odd[2500], call=replace(odd[2500].call, reduce_op="max"))
    chart = charted(job(fine, odd, fine), 3 * 400)
    assert len(chart.columns) < 600
    assert any("share a column" in note for note in chart.notes)
    spot = chart.spots[0]
    assert chart.columns[spot.column].span == 1
    assert chart.columns[spot.column].number == 2501
    assert chart.columns[-1].span == 1


def test_a_coarser_chart_is_smaller_first_without_lateness() -> None:
    chart = charted(job(*[[record(n) for n in range(1, 1001)]] * 3))
    once = coarser(chart)
    assert once.late.size == 0
    assert len(once.columns) == 1000
    twice = coarser(once)
    assert 300 < len(twice.columns) < 700
    assert sum(column.span for column in twice.columns) == twice.total == 1000


@pytest.mark.parametrize("column", ["signature", "source", "group"])
def test_a_damaged_record_is_no_reason_to_fail(column: str) -> None:
    traces = job(*[[record(1), record(2)]] * 3)
    traces[1].slots[column][1] = 10**9
    assert marks(charted(traces))[0] == ["done", "done"]
