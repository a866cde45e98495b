"""What ranks do while a job is ended for standing still is laid to nobody."""

from __future__ import annotations

from dataclasses import replace

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import DUMPED, LaunchOutcome, MemoryTrace, RankExit, Stall
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import RankStatus
from simcoll.verifier.halts.failed_calls import when_it_was_ended
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

SECOND = 10**9
WORLD = Group("0", "default_pg", (0, 1, 2))
TENSOR = (Buffer((3,), "float32"),)
SUM = Call("all_reduce", "allreduce", TENSOR, TENSOR, reduce_op="sum")
FROM_2 = Call("recv", "recv", (), TENSOR, peer=2, tag=0)
LINE = Source("train.py", 35, "messages", "work.wait()")
DONE = Record("0", 1, SUM, LINE, State.COMPLETED, scheduled_ns=SECOND, finished_ns=2 * SECOND)
RECEIVING = Record("0", 1, FROM_2, LINE, State.FAILED, True, True, 1, 3 * SECOND, 4 * SECOND, 21 * SECOND)
STALL = Stall(4 * SECOND, 20 * SECOND, stopped=frozenset({2}))
RESET = {"type": "RuntimeError", "message": "Connection reset by peer", "source": ["train.py", 35, "messages", ""]}


def a_rank_was_stopped() -> list[MemoryTrace]:
    """Rank 2 is stopped; rank 0 sees the connection break when rank 2 is ended, 1 s after the job was given up."""
    failing = trace_of(0, 3, [WORLD], [DONE, RECEIVING], events=[Event("exception", 21 * SECOND, RESET)])
    waiting = replace(DONE, sequence=2, state=State.STARTED, scheduled_ns=3 * SECOND, finished_ns=0)
    return [failing, trace_of(1, 3, [WORLD], [DONE, waiting]), trace_of(2, 3, [WORLD], [DONE])]


def test_a_connection_that_breaks_while_the_job_is_ended_is_no_evidence() -> None:
    ends = {0: RankExit(1, 21 * SECOND), 1: RankExit(-9, 21 * SECOND, True), 2: RankExit(-9, 21 * SECOND, True)}
    report = judge(a_rank_was_stopped(), LaunchOutcome(ends), STALL)
    assert [(finding.code, finding.culprits) for finding in report.findings] == [("SC201", (2,))]
    assert [state.status for state in report.ranks] == [RankStatus.STOPPED] * 3


def test_calls_made_after_the_end_are_not_judged() -> None:
    later = replace(DONE, sequence=2, scheduled_ns=22 * SECOND, finished_ns=23 * SECOND)
    traces = [trace_of(rank, 3, [WORLD], [DONE, later] if rank else [DONE]) for rank in range(3)]
    assert judge(traces, None, STALL).agreed == 1
    assert judge(traces, None, replace(STALL, over=False)).agreed == 1
    assert [len(trace.slots) for trace in traces] == [1, 2, 2]


def test_calls_in_the_tick_by_which_the_first_dump_is_dated_were_made() -> None:
    dumped, tick = Event(DUMPED, 10 * SECOND, {}), 10**7
    outcome = LaunchOutcome({rank: RankExit(-6, 12 * SECOND) for rank in range(3)})
    for late, made in ((tick, 2), (tick + 1, 1)):
        call = replace(DONE, sequence=2, state=State.STARTED, scheduled_ns=10 * SECOND + late, finished_ns=0)
        traces = [trace_of(rank, 3, [WORLD], [DONE, call], events=[dumped]) for rank in range(3)]
        assert [len(trace.slots) for trace in when_it_was_ended(traces, outcome, None)[0]] == [made] * 3


def test_a_failure_before_the_end_stays_one() -> None:
    traces = a_rank_was_stopped()
    ends = {2: RankExit(-9, 3 * SECOND), 0: RankExit(1, 21 * SECOND), 1: RankExit(-9, 21 * SECOND, True)}
    report = judge(traces, LaunchOutcome(ends), STALL)
    assert [(finding.code, finding.culprits) for finding in report.findings] == [("SC701", (2,))]
