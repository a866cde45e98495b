"""Where ranks came apart in calls that look alike, before the first call that differs: said where the lines tell it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.reports.html_report import html_report
from simcoll.reports.sarif import sarif_report
from simcoll.reports.terminal import TerminalReport
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.describe import apart_text
from simcoll.verifier.findings.finding import Finding, Report
from simcoll.verifier.postmortem import judge
from tests.support.documents import check_sarif, valid_report
from tests.support.traces import trace_of

SECOND = 10**9


def report_on(programs: Sequence[str], *, missing: Sequence[int] = (), mode: str = "detail", lives: int = 1) -> Report:
    return judge(traces_of(programs, missing=missing, mode=mode, lives=lives))


def traces_of(
    programs: Sequence[str], *, missing: Sequence[int] = (), mode: str = "detail", lives: int = 1
) -> list[MemoryTrace]:
    """Each letter of a rank's program is a call from the line of that letter; those of small letters look alike.

    Digits are calls of other sizes from one line, "w" has another shape, and the line of "z" is not known. The ranks
    that are not ``missing`` say that these did not come to their last call.
    """
    group = Group("0", "default_pg", tuple(range(len(programs))))
    traces = []
    for rank, program in enumerate(programs):
        calls = [(life, n, letter) for life in range(lives) for n, letter in enumerate(program, 1)]
        records = [record(n, letter, life * 100 + n) for life, n, letter in calls]
        waits = {"group": "0", "sequence": len(program), "missing": [*missing], "waited_ms": 9000}
        told = [Event("missing", 200 * SECOND, waits)] if missing and rank not in missing else []
        traces.append(trace_of(rank, len(programs), [group], records, mode=mode, events=told))
    return traces


def record(sequence: int, letter: str, at: int) -> Record:
    shape = (20, 20) if letter == "w" else (400,) if letter.islower() else (ord(letter),)
    tensors = (Buffer(shape, "float32"),)
    call = Call("all_reduce", "allreduce", tensors, tensors, reduce_op="sum")
    line = 1 if letter.isdigit() else ord(letter)
    source = Source("" if letter == "z" else "train.py", line, f"line_{line}", f"f({line})")
    return Record("0", sequence, call, source, State.COMPLETED, scheduled_ns=at * SECOND, finished_ns=at * SECOND + 1)


def said(report: Report) -> list[tuple[str, int | None]]:
    """Each finding's code, and where its ranks had come apart."""
    return [(one.code, None if one.came_apart is None else one.came_apart.sequence) for one in report.findings]


def skipped() -> Report:
    return report_on(["abcDabc"] * 2 + ["abcDacD"] + ["abcDabc"])


def first(report: Report) -> Finding:
    return report.findings[0]


def test_a_call_skipped_among_alike_ones_is_told_from_the_line_on_that_differs() -> None:
    finding = first(skipped())
    assert (finding.code, finding.sequence, finding.culprits) == ("SC102", 7, (2,))
    assert finding.came_apart is not None
    assert finding.came_apart.sequence == 6
    sides = [(side.ranks, [one.source.line for one in side.sources]) for side in finding.came_apart.sides]
    assert sides == [((0, 1, 3), [ord("b")]), ((2,), [ord("c")])]


@pytest.mark.parametrize(
    ("usual", "odd", "apart"),
    [
        ("aaaA", "aaaB", None),
        ("abcA", "acxB", 2),
        ("abcA", "aebB", 2),
        ("abcdA", "acdeB", 2),
        ("aA", "ab", None),
        ("bcA", "cxB", None),
        ("axbA", "aybB", None),
        ("axA", "ayB", None),
        ("axbaxA", "aybayB", None),
        ("axbaxcA", "aybaycB", None),
        ("axbaxcdA", "aybaydeB", 6),
        ("azbcA", "azcxB", None),
        ("abzcA", "acxdB", None),
        ("abcA", "azxB", None),
    ],
    ids=[
        "one line to the end",
        "one call skipped",
        "one call too many",
        "one call skipped long before",
        "nothing before",
        "never together",
        "lines of their own, then together",
        "lines of their own, once",
        "lines of their own, as before",
        "lines of their own, as before, and together",
        "lines of their own, then one call skipped",
        "no line known right before",
        "no line known on the way",
        "no line known on one side",
    ],
)
def test_the_stretch_of_other_lines_that_leads_to_the_finding(usual: str, odd: str, apart: int | None) -> None:
    assert said(report_on([usual, usual, odd]))[0][1] == apart


def test_a_rank_that_is_late_after_a_line_of_its_own_is_left_alone() -> None:
    assert said(report_on(["abxa", "abxa", "aby"], missing=[2])) == [("SC201", None)]


def test_what_one_line_disagrees_about_has_its_cause_there() -> None:
    assert said(report_on(["abc1", "abc1", "acx2"])) == [("SC102", None)]
    assert said(report_on(["abcA", "abcA", "acxA"])) == []


def test_ranks_of_one_side_may_come_from_several_lines() -> None:
    report = report_on(["abbA", "aceA", "adeA", "aeqB"])
    assert said(report) == [("SC102", 2)]
    apart = first(report).came_apart
    assert apart is not None
    assert [(side.ranks, len(side.sources)) for side in apart.sides] == [((0, 1, 2), 3), ((3,), 1)]
    assert said(report_on(["abbA", "aceA", "aeeA", "aeqB"])) == [("SC102", None)]
    # More lines than are named.
    assert said(report_on([f"a{letter}eA" for letter in "bcdfg"] + ["aeqB"])) == [("SC102", None)]
    assert said(report_on([f"a{letter}eA" for letter in "bcdff"] + ["aeqB"])) == [("SC102", 2)]


def test_all_ranks_of_a_side_are_asked() -> None:
    together = ["abcA"] * 70 + ["acxA"] * 59 + ["acxB"]
    assert said(report_on(together)) == [("SC102", None)]
    assert said(report_on(["abcA"] * 129 + ["acxB"])) == [("SC102", 2)]


def test_each_side_is_compared_with_the_largest() -> None:
    report = report_on(["abcdA"] * 3 + ["acdxB", "abcdC"])
    assert said(report) == [("SC102", 2)]
    apart = first(report).came_apart
    assert apart is not None
    assert [side.ranks for side in apart.sides] == [(0, 1, 2), (3,)]


def test_more_sides_than_are_told_are_left_alone() -> None:
    assert said(report_on(["abcA"] * 3 + [f"acx{letter}" for letter in "BCDEFGHIJ"])) == [("SC102", None)]


def test_calls_that_do_not_look_alike_where_lines_part_are_left_alone() -> None:
    # A warning tells of these by itself: the same elements in another shape.
    report = report_on(["abcA", "abcA", "awcB"])
    assert said(report) == [("SC102", None), ("SC109", None)]


def test_two_records_of_one_collective_say_nothing() -> None:
    def reports(again: int) -> list[tuple[str, int | None]]:
        traces = traces_of(["abcA", "abcA", "acxB"])
        traces[2].slots["sequence"][2] = again
        return said(judge(traces))

    assert reports(3) == [("SC102", 2)]
    assert reports(2)[0] == ("SC102", None)


def test_a_rank_that_does_not_come_at_all_is_looked_at_as_far_as_it_came() -> None:
    assert said(report_on(["abcabc", "abcabc", "abcac"], missing=[2])) == [("SC201", 5)]
    assert said(report_on(["abcabc", "abcabc", "abcab"], missing=[2])) == [("SC201", None)]


def test_a_rank_that_skipped_its_first_calls_is_ahead_by_them_all_along() -> None:
    assert said(report_on(["bc", "bc", "c"], missing=[2])) == [("SC201", 1)]
    assert said(report_on(["abcd", "abcd", "cd"], missing=[2])) == [("SC201", 1)]
    assert said(report_on(["abcd", "abcd", "cx"], missing=[2])) == [("SC201", None)]


def test_a_side_of_which_not_all_are_recorded_is_left_alone() -> None:
    traces = traces_of(["abcabc", "abcabc", "abcac", "abcac"], missing=[2, 3])
    assert said(judge(traces)) == [("SC201", 5)]
    assert said(judge(traces[:3])) == [("SC201", None)]


def test_only_the_first_finding_of_a_group_is_given_it() -> None:
    report = report_on(["abcAabcB", "abcAabcB", "acxCacxD"])
    assert said(report) == [("SC102", 2), ("SC102", None)]


def test_a_finding_that_says_it_itself_is_given_none() -> None:
    program = "abcD" * 30
    report = report_on([program, program, program[:41] + program[42:]], mode="record")
    assert said(report) == [("SC202", None)]


def test_a_group_that_was_made_twice_is_left_alone() -> None:
    assert said(report_on(["abcA", "abcA", "acxB"], lives=2))[0] == ("SC102", None)


def test_every_form_of_the_report_says_it(tmp_path: Path) -> None:
    report, words = skipped(), "at collective 6 already, in calls that look alike"
    stream = StringIO()
    Console(file=stream, width=80, no_color=True).print(TerminalReport(report))
    assert f"came apart: {words}" in stream.getvalue()
    assert words in html_report(report)
    document = json.loads(json.dumps(valid_report(report)))
    assert [one["came_apart"]["sequence"] for one in document["findings"]] == [6]
    log = json.loads(json.dumps(sarif_report(report, 3, tmp_path)))
    check_sarif(log)
    related = log["runs"][0]["results"][0]["relatedLocations"]
    texts = [one["message"]["text"] for one in related if one["message"]["text"].startswith("came apart")]
    assert [text.split(": ")[:2] for text in texts] == [
        ["came apart at collective 6", "rank 2"],
        ["came apart at collective 6", "ranks 0-1 and 3"],
    ]


def helped(letters: str, rank: int, ranks: int, *, way: str = "") -> MemoryTrace:
    """Each call from one line of a helper, which each letter calls from its own line, on a ``way`` of its own."""
    records = [record(n, letter, n) for n, letter in enumerate(letters, 1)]
    records = [replace(one, source=by_helper(one.source, way)) for one in records]
    return trace_of(rank, ranks, [Group("0", "default_pg", tuple(range(ranks)))], records, mode="detail")


def by_helper(line: Source, way: str) -> Source:
    callers = (replace(line, file=f"train{way}.py"), Source("train.py", 99, "main", "step()"))
    return Source("utils.py", 6, "mean", "dist.all_reduce(t)", callers=callers)


def test_calls_of_one_helper_come_apart_by_their_callers() -> None:
    programs = ["abcabcabcD", "abcabcabcD", "abcaabcabc"]
    report = judge([helped(program, rank, 3) for rank, program in enumerate(programs)])
    assert said(report) == [("SC102", 5)]
    assert "train.py:98 in line_98 into utils.py:6 in mean" in apart_text(report.findings[0])


def test_ranks_that_come_to_a_helper_by_ways_of_their_own_have_not_come_apart() -> None:
    report = judge([helped("aaaa5", 0, 3, way="0"), helped("aaaa5", 1, 3), helped("aaaa6", 2, 3)])
    assert said(report) == [("SC102", None)]
