"""Fields that records leave out: right calls stay silent, and what is left to compare is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from json import dumps
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.reports.html_report import html_report
from simcoll.reports.json_report import call_document
from simcoll.reports.sarif import sarif_report
from simcoll.reports.terminal import TerminalReport
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.agreement.known_fields import flow_sum, unknown_fields
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.describe import fields_text
from simcoll.verifier.findings.finding import Finding, Report
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

UNKNOWN = frozenset({"reduce_op", "root", "input_splits", "output_splits", "tag", "device", "order"})
WORLD = Group("0", "default_pg", (0, 1, 2, 3))
MASK = (1 << 64) - 1


def buffers(*counts: int, dtype: str = "float32") -> tuple[Buffer, ...]:
    return tuple(Buffer((count,), dtype, "") for count in counts)


def reduced(count: int, dtype: str = "float32") -> Call:
    return Call("all_reduce", "all_reduce", buffers(count, dtype=dtype), buffers(count, dtype=dtype))


def gathered(mine: int, *room: int) -> Call:
    return Call("gather", "gather", buffers(mine), buffers(*room))


def scattered(mine: int, *parts: int) -> Call:
    return Call("scatter", "scatter", buffers(*parts), buffers(mine))


def exchanged(sent: Sequence[int], received: Sequence[int]) -> Call:
    return Call("all_to_all", "all_to_all", buffers(*sent), buffers(*received))


def dumped(calls: Sequence[Call | None]) -> list[MemoryTrace]:
    """One trace a rank, each with one call (or none), as a dump tells of it."""
    traces = []
    for rank, call in enumerate(calls):
        if call is not None:
            record = Record("0", 1, call, Source("train.py", 7, "step"), State.COMPLETED, scheduled_ns=1)
            traces.append(replace(trace_of(rank, 4, [WORLD], [record], mode="dump"), unknown=UNKNOWN))
    return traces


def judged(calls: Sequence[Call | None]) -> Report:
    return judge(dumped(calls))


def compared(calls: Sequence[Call]) -> list[Finding]:
    records = {rank: Record("0", 1, call) for rank, call in enumerate(calls)}
    return compare(WORLD, records, unknown=UNKNOWN)


RIGHT = {
    "all_reduce": [reduced(4)] * 4,
    "broadcast": [Call("broadcast", "broadcast", buffers(3), buffers(3))] * 4,
    "reduce": [Call("reduce", "reduce", buffers(3), buffers(3))] * 4,
    "gather to a list at rank 2": [gathered(2), gathered(2), gathered(2, 2, 2, 2, 2), gathered(2)],
    "gather to one buffer at rank 0": [gathered(2, 8), gathered(2), gathered(2), gathered(2)],
    "uneven gather": [gathered(1), gathered(2), gathered(3), gathered(4, 1, 2, 3, 4)],
    "gather of nothing": [gathered(0), gathered(0, 0, 0, 0, 0), gathered(0), gathered(0)],
    "scatter from rank 3": [scattered(2), scattered(2), scattered(2), scattered(2, 8)],
    "all_to_all with splits": [exchanged([6], [4]), exchanged([2], [4]), exchanged([5], [4]), exchanged([3], [4])],
    "all_to_all of lists": [exchanged([rank] * 4, [0, 1, 2, 3]) for rank in range(4)],
    "uneven all_gather": [Call("all_gather", "all_gather", buffers(rank), buffers(0, 1, 2, 3)) for rank in range(4)],
    "barrier": [Call("barrier", "barrier")] * 4,
    "a size that the backend takes": [exchanged([3], [3])] * 4,
}


@pytest.mark.parametrize("calls", RIGHT.values(), ids=RIGHT)
def test_right_calls_are_silent(calls: list[Call]) -> None:
    report = judged(calls)
    assert (report.findings, report.agreed, exit_code(report)) == ((), 1, 0)
    assert compared(calls) == []


@pytest.mark.parametrize("calls", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize("absent", range(4))
def test_a_rank_without_a_dump_changes_nothing(calls: list[Call], absent: int) -> None:
    assert judged([None if rank == absent else call for rank, call in enumerate(calls)]).findings == ()


WRONG = {
    "count": ([reduced(4), reduced(4), reduced(5), reduced(4)], "SC102", (2,)),
    "dtype": ([reduced(4), reduced(4, "int32"), reduced(4), reduced(4)], "SC103", (1,)),
    "op": ([reduced(4), reduced(4), reduced(4), Call("barrier", "barrier")], "SC101", (3,)),
    "size of a gather": ([gathered(2, 2, 2, 2, 2), gathered(2), gathered(2), gathered(3)], "SC102", (3,)),
    "two roots": ([gathered(2, 8), gathered(2), gathered(2, 8), gathered(2)], "SC105", ()),
    "no root": ([gathered(2), gathered(2), gathered(2), gathered(2)], "SC105", ()),
    "more sent than expected": ([exchanged([4], [4])] * 3 + [exchanged([4], [5])], "SC106", (3,)),
    "lists": ([exchanged([1] * 4, [1] * 4)] * 3 + [exchanged([1, 2, 1, 1], [1] * 4)], "SC106", (3,)),
}


@pytest.mark.parametrize(("calls", "code", "culprits"), WRONG.values(), ids=WRONG)
def test_what_can_be_compared_is_compared(calls: list[Call], code: str, culprits: tuple[int, ...]) -> None:
    report = judged(calls)
    assert [(one.code, one.culprits) for one in report.findings] == [(code, culprits)]
    assert exit_code(report) == 3


def test_a_finding_names_what_its_records_leave_out() -> None:
    [finding] = judged([reduced(4), reduced(4), reduced(5), reduced(4)]).findings
    assert set(finding.unknown) == {"reduce_op", "device", "order"}
    [finding] = judged([gathered(2, 8), gathered(2), gathered(2, 8), gathered(2)]).findings
    assert "root" not in finding.unknown


def test_no_report_shows_a_device_that_no_record_states() -> None:
    report = judged([reduced(4), reduced(4), reduced(5), reduced(4)])
    [finding] = report.findings
    stream = StringIO()
    Console(file=stream, width=100).print(TerminalReport(report))
    [run] = cast("list[dict[str, object]]", sarif_report(report, 3, Path("/src"))["runs"])
    said = dumps(run["results"])
    assert "all_reduce(float32[4])" in said
    assert all("float32" in text and "cpu" not in text for text in (stream.getvalue(), html_report(report), said))
    assert finding.sides[0].call is not None
    assert call_document(finding.sides[0].call, WORLD) == {
        "op": "all_reduce",
        "spelling": "all_reduce",
        "dtype": "float32",
        "shapes": [[4]],
    }


def test_the_report_says_once_what_was_not_judged() -> None:
    notes = judged([reduced(4)] * 4).notes
    assert [note for note in notes if "do not state" in note] == [
        "these records do not state reduce op, root, splits, tag, device, memory order: mismatches of these were not "
        "judged"
    ]


def test_one_rank_that_cannot_say_is_enough() -> None:
    told = [
        replace(trace, unknown=frozenset(), signatures=_stating(trace, "max")) for trace in dumped([reduced(4)] * 4)
    ]
    told[2] = replace(told[2], unknown=frozenset({"reduce_op"}), signatures=(reduced(4),))
    assert judge(told).findings == ()
    # Without it, the fields that all state are compared.
    told[1] = replace(told[1], signatures=_stating(told[1], "sum"))
    assert [one.code for one in judge([told[0], told[1], told[3]]).findings] == ["SC104"]


def _stating(trace: MemoryTrace, reduce_op: str) -> tuple[Call, ...]:
    return tuple(replace(call, reduce_op=reduce_op) for call in trace.signatures)


@given(st.sampled_from(sorted(UNKNOWN | {"dtype", "count", "shape", "form"})), st.sampled_from(sorted(COLLECTIVES)))
def test_a_field_is_named_where_its_row_compares_it(field: str, op: str) -> None:
    spec = COLLECTIVES[op]
    named = unknown_fields([op], frozenset({field, "state"}))
    assert named == ((field,) if field in spec.agree | spec.law_reads else ())


def test_fields_in_words() -> None:
    assert fields_text(UNKNOWN) == "reduce op, root, splits, tag, device, memory order"
    assert fields_text({"state"}) == ""


@given(st.lists(st.integers(0, 5), min_size=2, max_size=5), st.data())
def test_the_flows_to_an_unknown_root_add_up_where_they_fit(mine: list[int], data: st.DataObject) -> None:
    size = len(mine)
    root = data.draw(st.integers(0, size - 1))
    calls = [gathered(count, *(mine if rank == root else ())) for rank, count in enumerate(mine)]
    spec = COLLECTIVES["gather"]
    total = sum(flow_sum(spec, call, rank, size, UNKNOWN)[0] for rank, call in enumerate(calls)) & MASK
    assert total == 0
    odd = data.draw(st.integers(0, size - 1).filter(lambda rank: rank != root))
    wrong = replace(calls[odd], inputs=buffers(mine[odd] + 1))
    other = flow_sum(spec, wrong, odd, size, UNKNOWN)[0] - flow_sum(spec, calls[odd], odd, size, UNKNOWN)[0]
    assert (total + other) & MASK


@given(st.integers(2, 5), st.data())
def test_what_all_send_is_what_all_expect(size: int, data: st.DataObject) -> None:
    splits = np.array(
        data.draw(st.lists(st.lists(st.integers(0, 4), min_size=size, max_size=size), min_size=size, max_size=size))
    )
    calls = [exchanged([int(splits[rank].sum())], [int(splits[:, rank].sum())]) for rank in range(size)]
    spec = COLLECTIVES["all_to_all"]
    parts = [flow_sum(spec, call, rank, size, UNKNOWN) for rank, call in enumerate(calls)]
    assert sum(part for part, _ in parts) & MASK == 0
    assert all(says_all for _, says_all in parts)
