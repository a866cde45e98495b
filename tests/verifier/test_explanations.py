"""The list of explanations: what is believed before what, stated in one place, and the page that is written from it."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.p2p_matching import Matching
from simcoll.verifier.explanations import EXPLANATIONS, SHOWN, STANDSTILL, Explanation, Inquiry
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.halts.job import Job
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

DOCS = Path(__file__).parents[2] / "docs"
SECOND = 10**9
PAIRS = (Group("1", "tp", (0, 1)), Group("2", "tp", (2, 3)))
TENSORS = (Buffer((4,), "float32"),)
CALL = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")
LINE = ["train.py", 41, "step", "dist.all_reduce(x)"]


def test_the_page_is_written_from_the_list() -> None:
    page = runpy.run_path(str(DOCS / "verdict.py"))["page"]()
    assert (DOCS / "verdict.md").read_text(encoding="utf-8") == page, "run: python docs/verdict.py"


def test_every_code_has_an_explanation() -> None:
    assert {code for one in EXPLANATIONS for code in one.codes} == set(RULES)


@pytest.mark.parametrize("place", range(len(EXPLANATIONS)), ids=lambda place: EXPLANATIONS[place].name)
def test_an_explanation_gives_way_only_to_those_before_it(place: int) -> None:
    before = {one.name for one in EXPLANATIONS[:place]}
    one = EXPLANATIONS[place]
    assert one.name not in before
    assert {*one.yields_to, *one.replaces} <= before
    assert one.find.__doc__, "the page says what it reports"


def test_a_halt_of_a_job_that_runs_gives_way_to_what_cannot_end() -> None:
    certain = {one.name for one in STANDSTILL[:3]}
    assert all(one.only_if_halted and certain <= set(one.yields_to) for one in STANDSTILL[3:])


def test_a_name_that_no_explanation_has_is_an_error() -> None:
    job = Job.of([], None, None, [], Matching())
    with pytest.raises(KeyError, match="calls agree"):
        Inquiry(job).ask([Explanation("calls disagree", (), lambda inquiry: [], yields_to=("calls agree",))])


def test_what_is_found_is_shown() -> None:
    assert sorted(SHOWN) == sorted(one.name for one in EXPLANATIONS)


def waiting(rank: int, group: Group, absent: Sequence[int]) -> MemoryTrace:
    """A rank that failed in its group's first call, for want of others."""
    record = Record(group.name, 1, CALL, Source("train.py", 41, "step"), State.FAILED, scheduled_ns=1 * SECOND)
    report = {"group": group.name, "sequence": 1, "missing": list(absent), "waited_ms": 2000, "source": LINE}
    error = {"type": "MissingRankError", "message": "Ranks 1 failed to pass monitoredBarrier", "source": LINE}
    events = [Event("missing", 3 * SECOND, report), Event("exception", 3 * SECOND + 1, error)]
    return trace_of(rank, 4, [group], [record], events=events)


def elsewhere(rank: int, group: Group, *events: Event) -> MemoryTrace:
    return trace_of(rank, 4, [group], [], events=events)


REFUSED = Event(
    "rejected", 2 * SECOND, {"function": "all_reduce", "type": "ValueError", "message": "no AVG", "source": LINE}
)


@pytest.mark.parametrize("refused", [1, 3])
def test_a_refused_call_takes_the_place_of_its_own_missing_rank_alone(refused: int) -> None:
    """Two groups without a common rank: the call of one missing rank was refused, the other rank just does not come."""
    traces = [waiting(0, PAIRS[0], [1]), waiting(2, PAIRS[1], [3])]
    traces += [elsewhere(rank, PAIRS[rank // 2], *([REFUSED] if rank == refused else [])) for rank in (1, 3)]
    found = [(one.code, one.group, one.culprits) for one in judge(traces).findings]
    missing = 4 - refused
    assert found == [("SC601", PAIRS[refused // 2], (refused,)), ("SC201", PAIRS[missing // 2], (missing,))]


def test_waits_of_connected_ranks_are_one_finding() -> None:
    """A rank that others miss waits itself: who keeps it is the cause of both waits."""
    between = Group("3", "pp", (1, 2))
    first, second = waiting(0, PAIRS[0], [1]), waiting(2, PAIRS[1], [3])
    third = waiting(3, Group("4", "pp", (1, 3)), [1])
    found = judge([first, elsewhere(1, between), second, third]).findings
    assert [(one.code, one.culprits) for one in found] == [("SC201", (1,))]


def test_a_wait_that_began_after_another_was_given_up_is_no_cause() -> None:
    late = waiting(2, PAIRS[1], [3])
    events = [Event(event.kind, event.time_ns + 4 * SECOND, event.data) for event in late.events]
    late = trace_of(2, 4, [PAIRS[1]], [], events=events)
    found = judge([waiting(0, PAIRS[0], [1]), elsewhere(1, PAIRS[0]), late, elsewhere(3, PAIRS[1])]).findings
    assert [(one.code, one.culprits) for one in found] == [("SC201", (1,))]
