"""Messages that one end let go: an error only where the other end waits, and nothing else explains that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import HANDED_ON, LET_GO, LaunchOutcome, MemoryTrace, RankExit, Stall
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Severity
from simcoll.verifier.postmortem import judge, standstill
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1))
STALL = Stall(0, 10**10)
OUTCOME = LaunchOutcome({rank: RankExit(None, 0) for rank in range(2)})


def message(op: str, *, awaited: bool, state: State = State.STARTED, device: str = "cpu") -> Record:
    buffers = (Buffer((4,), "float32", device),)
    rank = 0 if op == "send" else 1
    call = Call(op, op, **{"inputs" if op == "send" else "outputs": buffers}, peer=1 - rank, tag=0)
    return Record("0", 0, call, Source("train.py", 10 + rank, "step"), state, awaited=awaited, p2p_sequence=1)


def traces(send: Record, receive: Record, *, gone: str, flags: int = LET_GO) -> list[MemoryTrace]:
    found = [trace_of(0, 2, [WORLD], [send]), trace_of(1, 2, [WORLD], [receive])]
    found[0 if gone == "send" else 1].slots["flags"] |= flags
    return found


@pytest.mark.parametrize(("gone", "culprit"), [("send", 0), ("recv", 1)])
@pytest.mark.parametrize("flags", [LET_GO, LET_GO | HANDED_ON])
def test_the_end_that_let_it_go_is_named_with_its_line(gone: str, culprit: int, flags: int) -> None:
    ends = [message(op, awaited=op != gone) for op in ("send", "recv")]
    job = traces(*ends, gone=gone, flags=flags)
    [finding], proved = standstill(job, OUTCOME, STALL)
    assert proved
    assert (finding.code, finding.severity, finding.culprits) == ("SC501", Severity.ERROR, (culprit,))
    assert finding.sides[0].sources[0].source.line == 10 + culprit
    assert judge(job, OUTCOME, STALL).findings[0] == finding


def test_messages_that_one_line_let_go_are_one_finding() -> None:
    """Rank 0 drops the work of its sends to two ranks, which receive them."""
    world, line = Group("0", "default_pg", (0, 1, 2)), Source("train.py", 10, "step")
    buffers = (Buffer((4,), "float32", "cpu"),)
    sends = [
        Record("0", 0, Call("send", "send", buffers, peer=peer, tag=0), line, State.STARTED, p2p_sequence=peer)
        for peer in (1, 2)
    ]
    received = Call("recv", "recv", outputs=buffers, peer=0, tag=0)
    waits = Record("0", 0, received, Source("train.py", 20, "step"), State.STARTED, awaited=True, p2p_sequence=1)
    job = [trace_of(0, 3, [world], sends), *(trace_of(rank, 3, [world], [waits]) for rank in (1, 2))]
    job[0].slots["flags"] |= LET_GO
    [finding] = judge(job, LaunchOutcome({rank: RankExit(None, 0) for rank in range(3)}), STALL).findings
    assert (finding.code, finding.culprits, finding.ranks) == ("SC501", (0,), (0, 1, 2))
    assert finding.message.endswith("rank 1 receives it for ever; the same holds for rank 2")


def test_what_an_exception_unwinds_is_not_let_go_by_the_program() -> None:
    mismatch = {"type": "CollectiveMismatchError", "message": "Detected mismatch between collectives", "source": None}
    job = traces(message("send", awaited=False), message("recv", awaited=True, state=State.FAILED), gone="send")
    job[0] = replace(job[0], events=[Event("exception", 5, mismatch)])
    assert "SC501" not in [finding.code for finding in judge(job, OUTCOME).findings]


def swallowed(after: State = State.STARTED) -> list[MemoryTrace]:
    """A receive that was let go, its send, and a barrier to which both come."""
    job = []
    for rank, one in enumerate([message("send", awaited=True, state=State.COMPLETED), message("recv", awaited=False)]):
        barrier = Record("0", 1, Call("barrier", "barrier"), Source("train.py", 20, ""), after, scheduled_ns=5)
        job.append(trace_of(rank, 2, [WORLD], [one, barrier]))
    job[1].slots["flags"][0] |= LET_GO
    return job


def test_a_message_that_nobody_takes_holds_up_what_follows() -> None:
    _, proved = standstill(swallowed(), OUTCOME, STALL)
    assert not proved, "a slow barrier looks the same"
    [finding] = judge(swallowed(), OUTCOME, STALL).findings
    assert (finding.code, finding.severity, finding.culprits) == ("SC501", Severity.ERROR, (1,))
    assert finding.sides[0].sources[0].source.line == 11
    assert finding.message.endswith("such as barrier #1 of group 0, started, at train.py:20")


def test_nothing_is_swallowed_where_the_ranks_go_on() -> None:
    findings = judge(swallowed(after=State.COMPLETED), OUTCOME, STALL).findings
    assert "SC501" not in [finding.code for finding in findings]


@pytest.mark.parametrize(
    ("send", "receive", "flags"),
    [
        (message("send", awaited=False), message("recv", awaited=True), 0),
        (message("send", awaited=False), message("recv", awaited=True), HANDED_ON),
        (message("send", awaited=False), message("recv", awaited=False), LET_GO),
        (message("send", awaited=False), message("recv", awaited=True, state=State.COMPLETED), LET_GO),
        (message("send", awaited=True), message("recv", awaited=True), LET_GO),
        (message("send", awaited=False, device="cuda"), message("recv", awaited=True, device="cuda"), LET_GO),
    ],
)
def test_what_may_still_go_over_is_not_lost(send: Record, receive: Record, flags: int) -> None:
    findings, _ = standstill(traces(send, receive, gone="send", flags=flags), OUTCOME, STALL)
    assert "SC501" not in [finding.code for finding in findings]


def test_a_job_that_ended_well_lost_nothing() -> None:
    ended = LaunchOutcome({rank: RankExit(0, 1) for rank in range(2)})
    report = judge(traces(message("send", awaited=False), message("recv", awaited=True), gone="send"), ended)
    assert not [finding for finding in report.findings if finding.severity is Severity.ERROR]
