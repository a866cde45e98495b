"""Whole jobs from their traces: what is found, what is explained by something else, what is nobody's fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import SLOT, LaunchOutcome, MemoryTrace, RankExit
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import RankStatus, Report, Rule, Severity, Verdict
from simcoll.verifier.findings.rules import BUFFERS_OVERLAP, STRAGGLER, WORK_NEVER_WAITED
from simcoll.verifier.postmortem import judge
from tests.support.effort import lines_run
from tests.support.traces import trace_of

RANKS = 4
WORLD = Group("0", "default_pg", tuple(range(RANKS)))
TENSORS = (Buffer((20, 10), "float32"),)
SECOND = 10**9


def reduction(op: str = "sum") -> Call:
    return Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op=op)


def counted(elements: int) -> Call:
    sizes = (Buffer((elements,), "int64"),)
    return Call("broadcast", "broadcast", sizes, sizes, root=0)


def record(sequence: int, call: Call | None = None, *, line: int = 41, state: State = State.COMPLETED) -> Record:
    at = sequence * SECOND
    finished = at + 10 if state is State.COMPLETED else 0
    source = Source("train.py", line, "step", "dist.all_reduce(x)")
    return Record("0", sequence, call or reduction(), source, state, scheduled_ns=at, finished_ns=finished)


def ended(at: int = 100) -> Event:
    return Event("exit", at * SECOND, {})


def raised(at: float, kind: str, message: str, *, line: int = 50, api: str | None = None) -> Event:
    data: dict[str, object] = {
        "type": kind,
        "message": message,
        "api": api,
        "source": ["train.py", line, "main", "f()"],
    }
    return Event("exception", int(at * SECOND), data)


def refused(at: int, sequence: int | None, *, group: str | None = "0") -> Event:
    data: dict[str, object] = {"group": group, "sequence": sequence, "function": "all_reduce", "type": "ValueError"}
    return Event("rejected", at * SECOND, data | {"message": "no AVG", "source": ["train.py", 41, "step", "f()"]})


def absent(at: int, sequence: int, ranks: list[int]) -> Event:
    data: dict[str, object] = {"group": "0", "sequence": sequence, "missing": ranks, "waited_ms": 2000}
    return Event("missing", at * SECOND, data | {"source": ["train.py", 41, "step", "dist.all_reduce(x)"]})


def trace(
    rank: int, records: Sequence[Record], *events: Event, mode: str = "detail", group: Group = WORLD
) -> MemoryTrace:
    return trace_of(rank, RANKS, [group], records, mode=mode, events=events)


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def clean_job(calls: int = 5) -> list[MemoryTrace]:
    return [trace(rank, [record(n) for n in range(1, calls + 1)], ended()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "Error(s) in loading state_dict for Net:\n\tMissing key(s): 'w'.\n\tUnexpected key(s): 'v'.",
            "for Net: Missing",
        ),
        ("stopped:\n\n  no space left\n", "stopped: no space left"),
        ("out of memory\nTraceback", "out of memory"),
        ("stopped:", "stopped:"),
    ],
)
def test_a_failure_is_told_with_the_line_that_its_first_one_announces(message: str, said: str) -> None:
    traces = clean_job()
    traces[2] = trace(2, [record(n) for n in range(1, 4)], raised(4, "RuntimeError", message))
    told = judge(traces, LaunchOutcome({2: RankExit(1)})).findings[0].message
    assert said in told
    assert "Traceback" not in told
    assert "Unexpected" not in told


def test_a_clean_job_has_no_findings() -> None:
    report = judge(clean_job(), LaunchOutcome({rank: RankExit(0, 100) for rank in range(RANKS)}))
    assert (report.verdict, report.findings, report.agreed, exit_code(report)) == (Verdict.OK, (), 5, 0)
    assert {state.status for state in report.ranks} == {RankStatus.FINISHED}


def test_one_mismatch_with_what_matched_before() -> None:
    traces = [
        trace(rank, [record(n, reduction("max" if (rank, n) == (2, 5) else "sum")) for n in range(1, 7)], ended())
        for rank in range(RANKS)
    ]
    report = judge(traces)
    (finding,) = report.findings
    assert (finding.code, finding.culprits, finding.sequence) == ("SC104", (2,), 5)
    assert [one.sequence for one in finding.before] == [2, 3, 4]
    assert (report.agreed, exit_code(report)) == (5, 3)


def test_a_mismatch_in_a_loop_is_one_finding() -> None:
    traces = [
        trace(rank, [record(n, reduction("max" if rank == 2 else "sum")) for n in range(1, 7)], ended())
        for rank in range(RANKS)
    ]
    (finding,) = judge(traces).findings
    assert finding.sequence == 1
    assert "5 times more" in finding.message


def test_after_a_call_that_ran_only_the_first_mismatch_is_a_cause() -> None:
    """Without proof before the call, everything after a skipped one is shifted."""
    programs = {rank: [reduction("sum"), reduction("max"), reduction("min")] for rank in range(RANKS)}
    del programs[1][0]
    traces = [
        trace(rank, [record(n, call, line=n) for n, call in enumerate(calls, 1)], ended(), mode="record")
        for rank, calls in programs.items()
    ]
    (finding,) = judge(traces).findings
    assert (finding.sequence, finding.culprits) == (1, (1,))


def test_in_detail_mode_every_mismatch_is_real() -> None:
    ops = {5: "max", 9: "min"}
    traces = [
        trace(
            rank,
            [record(n, reduction(ops.get(n, "sum") if rank == n % 4 else "sum"), line=n) for n in range(1, 11)],
            ended(),
        )
        for rank in range(RANKS)
    ]
    assert [finding.sequence for finding in judge(traces).findings] == [5, 9]


def test_the_exception_of_a_mismatch_is_explained() -> None:
    error = raised(5.1, "CollectiveMismatchError", "Detected mismatch between collectives on ranks. ...")
    traces = [
        trace(rank, [record(n, reduction("max" if (rank, n) == (2, 5) else "sum")) for n in range(1, 6)], error)
        for rank in range(RANKS)
    ]
    report = judge(traces, LaunchOutcome({rank: RankExit(1, 6 * SECOND) for rank in range(RANKS)}))
    assert (codes(report), report.verdict) == (["SC104"], Verdict.FINDINGS)


def test_an_exception_in_the_very_call_that_ranks_disagree_about_is_explained() -> None:
    refusal = record(5, Call("broadcast", "broadcast", TENSORS, TENSORS, root=0), state=State.REJECTED)
    refusal = replace(refusal, finished_ns=5 * SECOND + 20)
    agreed = [record(n) for n in range(1, 5)]
    odd = trace(2, [*agreed, refusal], raised(5.5, "RuntimeError", "no such root"), mode="check")
    others = [trace(rank, [*agreed, record(5, state=State.STARTED)], mode="check") for rank in (0, 1, 3)]
    assert codes(judge([odd, *others])) == ["SC101"]


def test_the_first_own_failure_is_the_jobs_failure() -> None:
    lost = "Connection closed by peer [127.0.0.1]:1234"
    traces = [trace(rank, [record(1), record(2)], raised(3.2, "RuntimeError", lost)) for rank in (0, 1, 3)]
    traces.append(trace(2, [record(1)], raised(3.0, "ValueError", "bad shard", line=77)))
    report = judge(traces, LaunchOutcome({rank: RankExit(1, 4 * SECOND) for rank in range(RANKS)}))
    (finding,) = report.findings
    assert (finding.code, finding.culprits, report.verdict) == ("SC701", (2,), Verdict.FAILED)
    assert finding.sides[0].sources[0].source.line == 77
    assert "ValueError: bad shard" in finding.message


def test_a_rank_that_the_launcher_stopped_has_not_failed() -> None:
    traces = [trace(rank, [record(1)]) for rank in range(RANKS)]
    exits = {rank: RankExit(-15, 5 * SECOND) for rank in range(3)} | {3: RankExit(-9, 4 * SECOND)}
    report = judge(traces, LaunchOutcome(exits))
    (finding,) = report.findings
    assert (finding.code, finding.culprits) == ("SC701", (3,))
    assert "SIGKILL" in finding.message
    assert [state.status for state in report.ranks] == [RankStatus.STOPPED] * 3 + [RankStatus.FAILED]


def test_the_same_failure_on_every_rank_is_one_finding_without_culprits() -> None:
    traces = [trace(rank, [record(1)], raised(2 + rank / 10, "ZeroDivisionError", "")) for rank in range(RANKS)]
    (finding,) = judge(traces).findings
    assert (finding.code, finding.ranks, finding.culprits) == ("SC701", (0, 1, 2, 3), ())


def test_a_call_that_torch_refuses_is_an_invalid_argument() -> None:
    traces = [trace(rank, [record(1)]) for rank in (0, 2, 3)]
    traces.insert(1, trace(1, [], raised(2, "TypeError", "expected a tensor", api="all_reduce")))
    (finding,) = judge(traces).findings
    assert (finding.code, finding.culprits) == ("SC601", (1,))


def test_what_every_rank_handles_is_its_own_business() -> None:
    rejected = record(3, state=State.REJECTED)
    traces = [trace(rank, [record(1), record(2), rejected], refused(3, 3), ended()) for rank in range(RANKS)]
    assert judge(traces).findings == ()


def test_a_refusal_on_one_rank_leaves_the_others_waiting() -> None:
    traces = [
        trace(rank, [record(1), record(2, state=State.FAILED)], raised(9, "RuntimeError", "Connection closed by peer"))
        for rank in (0, 2, 3)
    ]
    traces.append(trace(1, [record(1), record(2, state=State.REJECTED)], refused(2, 2), ended(3)))
    report = judge(traces)
    (finding,) = report.findings
    assert (finding.code, finding.culprits, finding.severity) == ("SC601", (1,), Severity.ERROR)


def test_missing_ranks_and_where_they_are() -> None:
    error = raised(9, "MissingRankError", "Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms")
    waiting = [trace(rank, [record(1), record(2, state=State.FAILED)], absent(8, 2, [1, 3]), error) for rank in (0, 2)]
    busy = [trace(rank, [record(1)]) for rank in (1, 3)]
    exits = {rank: RankExit(1 if rank in (0, 2) else -15, 10 * SECOND) for rank in range(RANKS)}
    report = judge([*waiting, *busy], LaunchOutcome(exits))
    (finding,) = report.findings
    assert (finding.code, finding.culprits, finding.ranks) == ("SC201", (1, 3), (0, 1, 2, 3))
    assert finding.sides[1].note.startswith("busy elsewhere; last call: all_reduce #1 of group 0, completed")
    # Without a launcher nobody knows whether they still live.
    (finding,) = judge([*waiting, *busy]).findings
    assert (finding.code, finding.culprits) == ("SC201", (1, 3))
    assert finding.sides[1].note.startswith("its record goes no further; last call: all_reduce #1")


def test_a_rank_that_failed_is_not_missing() -> None:
    error = raised(9, "MissingRankError", "Ranks 1 failed to pass monitoredBarrier in 2000 ms")
    traces = [trace(rank, [record(1), record(2)], absent(8, 2, [1]), error) for rank in (0, 2, 3)]
    traces.append(trace(1, [record(1)], raised(2, "KeyError", "'loss'")))
    assert codes(judge(traces)) == ["SC701"]


def test_a_wait_that_the_program_handled_is_silent() -> None:
    traces = [trace(rank, [record(1)], ended()) for rank in (1, 2, 3)]
    traces.append(trace(0, [record(1)], absent(8, 2, [1]), ended()))
    assert judge(traces).findings == ()


def test_a_rank_that_left_early() -> None:
    lost = raised(5, "RuntimeError", "Connection closed by peer")
    traces = [trace(rank, [record(1), record(2, state=State.FAILED)], lost) for rank in (0, 1, 2)]
    traces.append(trace(3, [record(1)], ended(4)))
    (finding,) = judge(traces).findings
    assert (finding.code, finding.culprits) == ("SC702", (3,))


@pytest.mark.parametrize(("end", "culprits"), [(4, (3,)), (6, None)], ids=["before the failure", "after it"])
def test_a_rank_that_was_at_its_end_when_it_was_stopped_had_left(end: int, culprits: tuple[int] | None) -> None:
    lost = raised(5, "RuntimeError", "Connection closed by peer")
    traces = [trace(rank, [record(1), record(2, state=State.FAILED)], lost) for rank in (0, 1, 2)]
    traces.append(trace(3, [record(1)], ended(end)))
    stopped = {3: RankExit(-15, 7 * SECOND, stopped=True)}
    outcome = LaunchOutcome({rank: RankExit(1, 6 * SECOND) for rank in (0, 1, 2)} | stopped)
    found = {finding.code: finding.culprits for finding in judge(traces, outcome).findings}
    assert found.get("SC702") == culprits


def test_a_failure_before_any_group_is_exit_code_1() -> None:
    early = trace_of(0, 1, [], [], events=[raised(1, "ModuleNotFoundError", "No module named 'numpyy'")])
    report = judge([early], LaunchOutcome({0: RankExit(1, SECOND)}))
    assert (report.verdict, report.findings, exit_code(report)) == (Verdict.FAILED, (), 1)
    assert "ModuleNotFoundError" in report.notes[0]


def test_a_job_without_traces() -> None:
    report = judge([], LaunchOutcome({0: RankExit(2, SECOND)}))
    assert (report.verdict, exit_code(report)) == (Verdict.FAILED, 1)
    assert exit_code(judge([], None)) == 0


def test_a_missing_trace_is_noted_and_the_others_judged() -> None:
    traces = [trace(rank, [record(1, reduction("max" if rank == 2 else "sum"))], ended()) for rank in (0, 1, 2)]
    report = judge(traces)
    assert codes(report) == ["SC104"]
    assert "rank 3" in report.notes[0]
    assert codes(judge(clean_job()[:3])) == []


def test_a_group_that_was_made_again_starts_a_new_life() -> None:
    records = [record(1), record(2), record(1, reduction("max")), record(2, reduction("max"))]
    report = judge([trace(rank, records, ended()) for rank in range(RANKS)])
    assert (report.findings, report.agreed) == ((), 4)


def test_what_the_ring_dropped_is_not_missing() -> None:
    traces = clean_job()
    cut = traces[1]
    traces[1] = MemoryTrace(
        1, RANKS, "detail", cut.groups, cut.signatures, cut.sources, cut.events, cut.slots[3:], {0: 3}
    )
    report = judge(traces)
    assert (report.findings, report.agreed) == ((), 2)
    assert "overwritten" in report.notes[0]


def test_rows_that_point_nowhere_are_passed_over() -> None:
    traces = clean_job()
    slots = traces[0].slots.copy()
    slots["signature"][1], slots["group"][2], slots["source"][3], slots["state"][4] = 99, 99, 99, 99
    first = traces[0]
    traces[0] = MemoryTrace(0, RANKS, "detail", first.groups, first.signatures, first.sources, first.events, slots)
    assert judge(traces).findings == ()


@pytest.mark.parametrize(
    "data", [{}, {"group": 3, "sequence": "x", "missing": "y"}, {"type": 1, "message": [], "source": 2}]
)
def test_malformed_events_raise_nothing(data: dict[str, object]) -> None:
    events = [Event(kind, 5, data) for kind in ("exception", "missing", "rejected", "failed", "exit", "?")]
    judge([trace(rank, [record(1)], *events) for rank in range(RANKS)])


@pytest.mark.slow
def test_work_grows_with_ranks_and_records_are_not_looked_at() -> None:
    """The words do the work: as many lines of Python run for ten times the records."""

    def check(ranks: int, calls: int) -> None:
        group = Group("0", "", tuple(range(ranks)))
        slots = np.zeros(calls, SLOT)
        slots["sequence"] = np.arange(1, calls + 1)
        line = (Source("train.py", 1, "f"),)
        traces = [
            MemoryTrace(rank, ranks, "record", (group,), (reduction(),), line, (ended(),), slots)
            for rank in range(ranks)
        ]
        report = judge(traces)
        assert (report.agreed, report.findings) == (calls, ())

    check(2, 10)
    few, more, all_of_them = (lines_run(partial(check, *size)) for size in ((128, 200), (128, 2000), (512, 2000)))
    assert more < 1.1 * few
    assert all_of_them < 4.4 * more


def test_a_refusal_above_the_group_explains_why_a_rank_did_not_come() -> None:
    error = raised(9, "MissingRankError", "Ranks 1 failed to pass monitoredBarrier in 2000 ms")
    traces = [trace(rank, [record(1), record(2, state=State.FAILED)], absent(8, 2, [1]), error) for rank in (0, 2, 3)]
    traces.append(trace(1, [record(1)], refused(2, None, group=None)))
    (finding,) = judge(traces).findings
    assert (finding.code, finding.culprits) == ("SC601", (1,))


@pytest.mark.parametrize(
    ("failure", "expected"), [(None, ["SC104"]), (raised(9, "KeyError", "'x'"), ["SC104", "SC701"])]
)
def test_what_follows_a_mismatch_that_was_handled(failure: Event | None, expected: list[str]) -> None:
    """Going on and leaving with an exit code is the end of the same story; an exception much later is another one."""
    events = [] if failure is None else [failure]
    traces = [
        trace(rank, [record(n, reduction("max" if (rank, n) == (2, 2) else "sum")) for n in range(1, 7)], *events)
        for rank in range(RANKS)
    ]
    report = judge(traces, LaunchOutcome({rank: RankExit(1, 10 * SECOND) for rank in range(RANKS)}))
    assert codes(report) == expected


def test_an_exception_right_after_a_mismatched_call_that_completed_is_its_consequence() -> None:
    traces = [
        trace(rank, [record(1), record(2, reduction("max" if rank == 2 else "sum"))], raised(9, "KeyError", "'x'"))
        for rank in range(RANKS)
    ]
    assert codes(judge(traces, LaunchOutcome({2: RankExit(1, 10 * SECOND)}))) == ["SC104"]


@pytest.mark.parametrize(("line", "expected"), [(7, ["SC102"]), (50, ["SC102", "SC601"])])
def test_a_function_on_objects_fails_by_its_own_mismatched_call(line: int, expected: list[str]) -> None:
    """It sends sizes, and then what they say: the second call completes, and the text that arrived is none."""
    source = Source("train.py", 7, "main")
    traces = [
        trace(
            rank,
            [replace(record(1, counted(2 + (rank == 2))), source=source), record(2)],
            *([raised(9, "EOFError", "Ran out of input", line=line, api="broadcast_object_list")] if rank == 2 else []),
        )
        for rank in range(RANKS)
    ]
    assert codes(judge(traces, LaunchOutcome({2: RankExit(1, 10 * SECOND)}))) == expected


@pytest.mark.parametrize(("rule", "code"), [(WORK_NEVER_WAITED, 3), (BUFFERS_OVERLAP, 3), (STRAGGLER, 0)])
def test_strict_counts_warnings_that_mean_a_race_or_lost_data(rule: Rule, code: int) -> None:
    report = Report(Verdict.FINDINGS, 1, "record", (rule.finding("it", severity=Severity.WARNING),), ())
    assert (exit_code(report), exit_code(report, strict=True)) == (0, code)
