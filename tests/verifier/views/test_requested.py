"""What is shown of a report: never what is judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import SLOT, MemoryTrace
from simcoll.reports.json_report import json_report
from simcoll.reports.terminal import TerminalReport
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.requested import View, viewed
from simcoll.verifier.views.selection import Selection, SelectionError
from tests.support.documents import check_report
from tests.support.traces import trace_of

TENSORS = (Buffer((4,), "float32"),)
WORLD = Group("0", "default_pg", (0, 1, 2, 3))
PAIRS = (Group("a1", "tp", (0, 1)), Group("b2", "tp", (2, 3)))
STEPS = 8


def record(name: str, number: int, op: str = "sum") -> Record:
    call = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op=op)
    return Record(name, number, call, Source("train.py", 41, "step"), State.COMPLETED, scheduled_ns=number)


def job() -> list[MemoryTrace]:
    """Rank 3 reduces otherwise in step 6, on its pair alone."""
    found = []
    for rank in range(4):
        pair = PAIRS[rank // 2]
        records = []
        for step in range(1, STEPS + 1):
            records.append(record("0", step))
            records.append(record(pair.name, step, "max" if (rank, step) == (3, 6) else "sum"))
        found.append(trace_of(rank, 4, (WORLD, pair), records, mode="record"))
    return found


def shown(view: View, traces: Sequence[MemoryTrace] | None = None) -> Report:
    traces = job() if traces is None else traces
    return viewed(judge(traces), traces, view)


@pytest.mark.parametrize(
    ("selection", "codes", "ranks"),
    [
        (Selection(), ["SC104"], [0, 1, 2, 3]),
        (Selection(("tp",)), ["SC104"], [0, 1, 2, 3]),
        (Selection(("b2",)), ["SC104"], [2, 3]),
        (Selection(("a1",)), [], [0, 1]),
        (Selection(("default_pg",)), [], [0, 1, 2, 3]),
        (Selection((), (3,)), ["SC104"], [3]),
        (Selection((), (0, 1)), [], [0, 1]),
        (Selection(("b2",), (1, 2)), ["SC104"], [2]),
        (Selection(("a1", "b2"), (0, 3)), ["SC104"], [0, 3]),
    ],
)
def test_a_report_is_narrowed_and_its_verdict_is_not(selection: Selection, codes: list[str], ranks: list[int]) -> None:
    whole, report = judge(job()), shown(View(selection))
    assert [finding.code for finding in report.findings] == codes
    assert [state.rank for state in report.ranks] == ranks
    assert (report.verdict, report.agreed, report.world_size) == (whole.verdict, whole.agreed, 4)
    assert exit_code(whole) == 3
    assert sorted(rank for place in report.summary.places for rank in place.ranks) == ranks
    if selection != Selection():
        assert report.shown.hidden_errors == 1 - len(codes)


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (Selection(("dp",)), "no group 'dp' in the records; they have default_pg, tp, 0, a1, b2"),
        (Selection((), (2, 4, 5)), "the job has no ranks 4-5; it has ranks 0-3"),
    ],
)
def test_unknown_groups_and_ranks_are_refused(selection: Selection, text: str) -> None:
    with pytest.raises(SelectionError) as error:
        shown(View(selection))
    assert str(error.value) == text


def test_the_last_calls_of_ranks_that_did_the_same_are_one() -> None:
    report = shown(View(Selection(("tp",)), last=2))
    assert [(history.ranks, [record.sequence for record in history.records]) for history in report.histories] == [
        ((0, 1, 2, 3), [7, 8])
    ]
    assert [group.name for group in report.histories[0].groups] == ["a1", "a1"]


@pytest.mark.parametrize("last", [1, 2, 3, 4, 5, 9])
def test_as_many_collectives_before_a_finding_as_asked_for(last: int) -> None:
    (finding,) = shown(View(last=last)).findings
    assert [record.sequence for record in finding.before] == list(range(max(6 - last, 1), 6))


def test_a_timeline_is_there_if_it_is_asked_for() -> None:
    assert shown(View()).timeline is None
    timeline = shown(View(timeline=True, last=3)).timeline
    assert len(timeline.columns) == 3
    assert timeline.total == 2 * STEPS


def test_more_than_there_is_shows_all() -> None:
    report = shown(View(last=1000))
    assert {len(history.records) for history in report.histories} == {2 * STEPS}


@pytest.mark.slow
@given(st.binary(min_size=SLOT.itemsize, max_size=40 * SLOT.itemsize), st.integers(0, 3))
@example(bytes(15) + b"\1" + bytes(SLOT.itemsize - 16), 2)
def test_whatever_a_damaged_record_says_is_shown(noise: bytes, victim: int) -> None:
    """Rows that point nowhere, states and times that cannot be: no error, and the other ranks as they are."""
    traces = job()
    rows = np.frombuffer(noise[: len(noise) // SLOT.itemsize * SLOT.itemsize], SLOT)
    traces[victim] = replace(traces[victim], slots=np.concatenate([traces[victim].slots, rows]))
    report = shown(View(Selection(), last=5, timeline=True), traces)
    Console(file=StringIO(), width=80).print(TerminalReport(report))
    check_report(json.loads(json.dumps(json_report(report))))


def test_groups_of_others_in_a_record_have_no_columns() -> None:
    traces = job()
    traces[0] = replace(traces[0], groups=(WORLD, PAIRS[1]))
    timeline = shown(View(Selection(("tp",)), timeline=True), traces).timeline
    assert [column.group.name for column in timeline.columns] == ["a1"] * STEPS
