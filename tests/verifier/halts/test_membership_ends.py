"""Calls on a group that the rank had destroyed: a warning where the backend ran them all the same."""

from __future__ import annotations

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Report, Severity
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

GROUPS = [Group("0", "default_pg", (0, 1)), Group("1", "", (0, 1))]
TENSORS = (Buffer((4,), "float32"),)
SUM = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")


def judged(*events: Event, state: State = State.COMPLETED) -> Report:
    """Both ranks call group 1 at 10 and at 30."""
    first, second = (
        Record("1", number, SUM, Source("train.py", number, "step"), scheduled_ns=at, finished_ns=at + 1)
        for number, at in ((1, 10), (2, 30))
    )
    ends = [Event("exit", 99, {})]
    again = Record("1", 2, SUM, Source("train.py", 2, "step"), state, scheduled_ns=30, finished_ns=31)
    own = trace_of(0, 2, GROUPS, [first, again], mode="record", events=[*events, *ends])
    return judge([own, trace_of(1, 2, GROUPS, [first, second], mode="record", events=ends)])


def destroyed(group: str | None, at: int) -> Event:
    return Event("destroyed", at, {"group": group, "source": ["train.py", 9, "step", "f()"]})


def test_a_call_after_the_end_of_its_group_is_a_warning() -> None:
    [finding] = judged(destroyed("1", 20)).findings
    assert (finding.code, finding.severity, finding.culprits) == ("SC601", Severity.WARNING, (0,))
    assert finding.message == "rank 0 called all_reduce on group 1 after it had destroyed it"
    assert [one.source.line for one in finding.sides[0].sources] == [2]


def test_calls_before_the_end_or_on_a_group_made_anew_are_right() -> None:
    assert judged(destroyed("1", 40)).findings == ()
    assert judged(destroyed("0", 20)).findings == ()
    assert judged(destroyed("1", 20), Event("creating", 25, {})).findings == ()


def lost(*events: Event) -> Report:
    """Rank 1 fails in a call of group 1 because the connection is closed."""
    first, second = (
        Record("1", number, SUM, Source("train.py", number, "step"), state, scheduled_ns=at, finished_ns=at + 1)
        for number, at, state in ((1, 10, State.COMPLETED), (2, 30, State.FAILED))
    )
    closed = Event("exception", 31, {"type": "RuntimeError", "message": "Connection closed by peer"})
    left = trace_of(0, 2, GROUPS, [first, second], mode="record", events=[*events])
    return judge([left, trace_of(1, 2, GROUPS, [first, second], mode="record", events=[closed])])


def test_who_used_the_group_that_it_had_destroyed_is_named_where_others_lost_it() -> None:
    [finding] = lost(destroyed("1", 20)).findings
    assert (finding.code, finding.severity, finding.culprits) == ("SC601", Severity.ERROR, (0,))
