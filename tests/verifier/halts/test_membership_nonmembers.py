"""SC402: an error where no member makes the call too or the rank fails next, a warning where it goes on unharmed."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Report, Severity
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1, 2))
EVENS = Group("1", "", (0, 2))
TENSORS = (Buffer((4,), "float32"),)
SUM = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")


def record(group: str = "1", *, line: int = 7, at: int = 10, state: State = State.COMPLETED) -> Record:
    source = Source("train.py", line, "step")
    finished = at + 1 if state is State.COMPLETED else 0
    return Record(group, 1, SUM, source, state, False, True, scheduled_ns=at, finished_ns=finished)


def outside(function: str = "all_reduce", *, line: int = 7, at: int = 10) -> Event:
    return Event("non_member", at, {"function": function, "count": 1, "source": ["train.py", line, "step", "f()"]})


def failed(at: int) -> Event:
    return Event("exception", at, {"type": "AttributeError", "message": "no wait", "source": ["train.py", 8, "", ""]})


def judged(member: Sequence[Record], *events: Event, own: Sequence[Record] = (), end: bool = True) -> Report:
    exits = [Event("exit", 99, {})] if end else []
    traces: list[MemoryTrace] = [
        trace_of(rank, 3, [WORLD, EVENS], member, mode="record", events=exits) for rank in (0, 2)
    ]
    traces.insert(1, trace_of(1, 3, [WORLD], own, mode="record", events=[*events, *exits]))
    return judge(traces)


def test_members_that_call_too_make_it_a_warning() -> None:
    [finding] = judged([record()], outside()).findings
    assert (finding.code, finding.severity, finding.culprits, finding.group) == (
        "SC402",
        Severity.WARNING,
        (1,),
        EVENS,
    )


def test_members_may_call_from_another_line() -> None:
    [finding] = judged([record(line=5)], outside("all_reduce")).findings
    assert finding.severity is Severity.WARNING


def test_a_call_that_no_member_makes_is_an_error() -> None:
    [finding] = judged([], outside()).findings
    assert (finding.severity, finding.culprits) == (Severity.ERROR, (1,))


def test_a_call_that_only_some_members_make_from_there_is_an_error() -> None:
    traces = [
        trace_of(0, 3, [WORLD, EVENS], [record(line=7)], mode="record", events=[Event("exit", 99, {})]),
        trace_of(1, 3, [WORLD], [], mode="record", events=[outside(), Event("exit", 99, {})]),
        trace_of(2, 3, [WORLD, EVENS], [record(line=3)], mode="record", events=[Event("exit", 99, {})]),
    ]
    [finding] = judge(traces).findings
    assert finding.severity is Severity.ERROR


def test_a_rank_that_fails_next_was_harmed_and_its_failure_is_no_finding_of_its_own() -> None:
    [finding] = judged([record()], outside(), failed(at=20), end=False).findings
    assert (finding.code, finding.severity) == ("SC402", Severity.ERROR)


def test_a_rank_that_fails_much_later_fails_for_its_own_reasons() -> None:
    later = record("0", line=9, at=15)
    report = judged([record()], outside(), failed(at=20), own=[later], end=False)
    assert [(finding.code, finding.severity) for finding in report.findings] == [
        ("SC701", Severity.ERROR),
        ("SC402", Severity.WARNING),
    ]


def test_one_line_is_one_finding() -> None:
    report = judged([record()], outside(), outside(at=20), outside("broadcast", line=12))
    assert sorted(finding.sides[0].sources[0].source.line for finding in report.findings) == [7, 12]


PAIRS = Group("1", "", (0, 1)), Group("2", "", (2, 3))


def judged_pairs(*of_two: Record, end: bool = True) -> Report:
    """Rank 2 makes a call of its neighbours' pair; its partner waits in their own."""
    everyone = Group("0", "default_pg", (0, 1, 2, 3))
    exits = [Event("exit", 99, {})]
    traces = [trace_of(rank, 4, [everyone, PAIRS[0]], [record("1")], mode="record", events=exits) for rank in (0, 1)]
    events = [outside(), *(exits if end else [])]
    traces.append(trace_of(2, 4, [everyone, PAIRS[1]], of_two, mode="record", events=events))
    waits = record("2", state=State.STARTED)
    traces.append(trace_of(3, 4, [everyone, PAIRS[1]], [waits], mode="record"))
    return judge(traces)


def test_a_call_of_others_while_the_own_group_waits_there_is_an_error() -> None:
    finding = judged_pairs().findings[0]
    assert (finding.code, finding.severity, finding.culprits) == ("SC402", Severity.ERROR, (2,))
    assert "while rank 3 waits there for rank 2" in finding.message
    assert judged_pairs(record("0", line=9, at=20), end=False).findings[0].severity is Severity.ERROR


def test_a_rank_that_may_yet_call_its_own_group_is_not_blamed_for_the_others() -> None:
    assert [one.severity for one in judged_pairs(end=False).findings if one.code == "SC402"] == [Severity.WARNING]


def test_a_rank_that_called_its_own_group_there_too_did_no_harm() -> None:
    report = judged_pairs(record("2", at=20))
    assert [one.severity for one in report.findings if one.code == "SC402"] == [Severity.WARNING]
