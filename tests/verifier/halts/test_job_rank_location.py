"""Ranks that let a group go before the others had done with it."""

from __future__ import annotations

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import LaunchOutcome, RankExit, Stall
from simcoll.spec.call import Call
from simcoll.verifier.findings.finding import Severity
from simcoll.verifier.postmortem import judge, standstill
from tests.support.traces import trace_of

GROUP = Group("0", "default_pg", (0, 1))
SECOND = 10**9
OUTCOME = LaunchOutcome({rank: RankExit(None, 0) for rank in range(2)})
STALL = Stall(0, 60 * SECOND)


MADE_AGAIN = [
    Event("creating", 4 * SECOND, {"life": 2, "ordinal": 0, "ranks": [0, 1]}),
    Event("created", 4 * SECOND, {"life": 2, "ordinal": 0}),
]


def record(sequence: int, state: State = State.COMPLETED) -> Record:
    source = Source("train.py", 10, "step")
    at = sequence * SECOND
    return Record("0", sequence, Call("barrier", "barrier"), source, state, awaited=True, scheduled_ns=at)


def destroyed(at: int, group: str | None) -> Event:
    return Event("destroyed", at * SECOND, {"group": group, "source": ["train.py", 20, "end", "destroy()"]})


def found(*events: Event) -> tuple[str, Severity, tuple[int, ...], int]:
    traces = [
        trace_of(0, 2, [GROUP], [record(1), record(2, State.STARTED)]),
        trace_of(1, 2, [GROUP], [record(1)], events=events),
    ]
    [finding], _ = standstill(traces, OUTCOME, STALL)
    assert judge(traces, OUTCOME, STALL).findings == (finding,)
    return finding.code, finding.severity, finding.culprits, finding.sides[1].sources[0].source.line


@pytest.mark.parametrize("group", [None, "0"])
def test_a_rank_that_destroyed_the_group_left_early(group: str | None) -> None:
    assert found(destroyed(3, group)) == ("SC702", Severity.ERROR, (1,), 20)


@pytest.mark.parametrize(
    "events",
    [
        (),
        (destroyed(3, "5"),),
        (destroyed(0, None),),
        (destroyed(3, None), *MADE_AGAIN),
    ],
)
def test_one_that_has_another_group_again_is_late(events: tuple[Event, ...]) -> None:
    assert found(*events) == ("SC201", Severity.ERROR, (1,), 10)
