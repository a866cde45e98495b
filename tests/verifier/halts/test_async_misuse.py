"""SC501 to SC503 from records and events: what is reported once, and what is let pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import HANDED_ON, MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Severity
from simcoll.verifier.halts.async_misuse import memory_findings, never_waited
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

PAIR = Group("0", "default_pg", (0, 1))
TENSORS = (Buffer((4,), "float32"),)
SUM = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")
EXIT = Event("exit", 10**12, {})


def record(sequence: int, *, awaited: bool = False, line: int = 7, call: Call = SUM, **more: object) -> Record:
    state = more.pop("state", State.STARTED)
    assert isinstance(state, State)
    message = 1 if call.op in ("send", "recv") else 0
    source = Source("train.py", line, "step")
    return Record("0", sequence, call, source, state, not message, awaited, p2p_sequence=message, scheduled_ns=sequence)


def traces(*programs: Sequence[Record], events: Sequence[Event] = (EXIT,)) -> list[MemoryTrace]:
    return [trace_of(rank, 2, [PAIR], records, events=events) for rank, records in enumerate(programs)]


def test_a_line_whose_calls_nobody_waited_for_is_one_finding() -> None:
    [finding] = never_waited(traces([record(1), record(2)], [record(1, awaited=True), record(2)]))
    assert (finding.code, finding.severity, finding.ranks, finding.culprits) == ("SC501", Severity.WARNING, (0,), (0,))
    assert finding.sides[0].sources[0].source.line == 7


def test_where_every_rank_does_it_nobody_is_in_the_minority() -> None:
    [finding] = never_waited(traces([record(1)], [record(1)]))
    assert (finding.ranks, finding.culprits) == ((0, 1), ())


@pytest.mark.parametrize("state", [State.SCHEDULED, State.FAILED, State.REJECTED])
def test_calls_that_did_not_run_have_no_result(state: State) -> None:
    assert never_waited(traces([record(1, state=state)], [])) == []


def test_the_last_of_a_line_that_waits_is_a_look_ahead() -> None:
    waits = [record(1, awaited=True), record(2, awaited=True)]
    assert never_waited(traces([*waits, record(3)], [])) == []
    assert len(never_waited(traces([waits[0], record(2), record(3, awaited=True)], []))) == 1


def barrier(sequence: int, function: str = "step") -> Record:
    source = Source("train.py", 9, function)
    return Record(
        "0", sequence, Call("barrier", "barrier"), source, State.COMPLETED, False, True, scheduled_ns=sequence
    )


def test_a_barrier_of_the_same_function_ends_what_came_before_it() -> None:
    gathered = [record(1, state=State.COMPLETED), record(2), barrier(3)]
    assert never_waited(traces(gathered, gathered)) == []
    assert len(never_waited(traces([*gathered, record(4)], []))) == 1
    assert (
        len(never_waited(traces([record(1), record(2, line=8, awaited=True, state=State.COMPLETED), barrier(3)]))) == 1
    )
    assert len(never_waited(traces([record(1), barrier(2, "main")]))) == 1
    receive = record(1, call=Call("recv", "recv", outputs=TENSORS, peer=1, tag=0))
    assert len(never_waited(traces([receive, barrier(1)]))) == 1


def test_a_future_may_be_waited_for_unseen() -> None:
    [trace, other] = traces([record(1)], [])
    trace.slots["flags"] |= HANDED_ON
    assert never_waited([trace, other]) == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Call("send", "send", inputs=TENSORS, peer=1, tag=0), 0),
        (Call("recv", "recv", outputs=TENSORS, peer=1, tag=0), 1),
        (Call("barrier", "barrier"), 0),
        (Call("broadcast", "broadcast", TENSORS, TENSORS, root=0), 0),
        (Call("broadcast", "broadcast", TENSORS, TENSORS, root=1), 1),
        (Call("reduce", "reduce", TENSORS, TENSORS, reduce_op="sum", root=1), 0),
    ],
)
def test_only_calls_that_bring_this_rank_a_result_matter(call: Call, expected: int) -> None:
    assert len(never_waited(traces([record(1, call=call)], []))) == expected


def test_a_job_that_did_not_end_well_left_its_calls_for_other_reasons() -> None:
    assert [finding.code for finding in judge(traces([record(1)], [record(1)])).findings] == ["SC501"]
    assert judge(traces([record(1)], [record(1)], events=())).findings == ()


def event(kind: str, line: int = 7, **data: object) -> Event:
    where = {"group": "0", "sequence": 3, "op": "all_reduce", "count": 1, "source": ["train.py", line, "step", "x()"]}
    return Event(kind, 5, where | data)


def overlap(line: int, **data: object) -> Event:
    other = {"group": "0", "sequence": 2, "op": "all_reduce", "source": ["train.py", 6, "step", "y()"]}
    return event("overlap", line, other=other, **data)


def test_a_write_is_an_error_where_it_is_known_to_do_harm() -> None:
    noticed = event("changed", known=False, noticed=["train.py", 9, "step", "w.wait()"])
    [warned] = memory_findings(traces([], [], events=[noticed]))
    assert (warned.finding.severity, warned.finding.sequence) == (Severity.WARNING, 3)
    assert [stated.source.line for stated in warned.finding.sides[0].sources] == [7, 9]
    [grave] = memory_findings(traces([], [], events=[noticed, event("changed", known=True, noticed=None)]))
    assert (grave.finding.code, grave.finding.severity) == ("SC502", Severity.ERROR)


@pytest.mark.parametrize(("both", "running"), [(True, True), (True, False), (False, True)])
def test_an_overlap_is_an_error_where_both_write_at_once(both: bool, running: bool) -> None:
    [found] = memory_findings(traces([], [], events=[overlap(7, both_write=both, running=running)]))
    assert found.finding.code == "SC503"
    assert (found.finding.severity is Severity.ERROR) == (both and running)
    assert [stated.source.line for stated in found.finding.sides[0].sources] == [7, 6]


@pytest.mark.parametrize(("sequence", "codes"), [(2, ["SC503"]), (3, ["SC502", "SC503"])])
def test_a_write_by_a_call_that_uses_the_memory_is_no_second_finding(sequence: int, codes: list[str]) -> None:
    events = [event("changed", 6, sequence=sequence, known=False), overlap(7, both_write=True, running=False)]
    found = memory_findings(traces([], [], events=events))
    assert sorted(mismatch.finding.code for mismatch in found) == codes


def test_events_of_any_shape_are_read() -> None:
    odd = [Event("changed", 1, {}), Event("overlap", 2, {"other": 7, "source": [1]}), event("overlap", other=[])]
    assert len(memory_findings(traces([], [], events=odd))) == 3


LINES = st.tuples(st.sampled_from((7, 8)), st.booleans(), st.sampled_from((State.SCHEDULED, State.COMPLETED)))


@given(st.lists(LINES, max_size=9))
def test_what_is_left_is_what_a_look_at_each_record_finds(program: list[tuple[int, bool, State]]) -> None:
    calls = [record(k + 1, awaited=awaited, line=line, state=state) for k, (line, awaited, state) in enumerate(program)]
    counts: dict[int, int] = {}
    for k, (line, awaited, state) in enumerate(program):
        waited = [place for place, other in enumerate(program) if other[0] == line and other[1]]
        last_of_many = any(place < k for place in waited) and not any(place > k for place in waited)
        if state is State.COMPLETED and not awaited and not last_of_many:
            counts[line] = counts.get(line, 0) + 1
    found = never_waited(traces(calls, []))
    assert [finding.sides[0].sources[0].source.line for finding in found] == list(counts)
    assert [
        f"({count} calls in all)" in finding.message for finding, count in zip(found, counts.values(), strict=True)
    ] == [count > 1 for count in counts.values()]
