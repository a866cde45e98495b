"""Messages of devices without another end, where the ranks that lack it wait in a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import ON_DEVICE, LaunchOutcome, MemoryTrace, RankExit, Stall, lives
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, Severity
from simcoll.verifier.halts.device_queue import DeviceCalls, device_lives, queued
from simcoll.verifier.postmortem import judge, standstill
from tests.support.traces import trace_of

BUFFER = (Buffer((4,), "float32", "cuda", 0),)
BARRIER = Call("barrier", "barrier")
SUM = Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op="sum")
SECOND = 10**9
Program = Sequence[Call | str]
"""A rank's calls; ``async`` says of the call before that nobody waits for it, ``done`` that it has ended."""


def message(op: str, peer: int) -> Call:
    return Call(op, op, BUFFER if op == "send" else (), BUFFER if op == "recv" else (), peer=peer)


def trace(rank: int, size: int, program: Program, *events: Event) -> MemoryTrace:
    world = Group("0", "default_pg", tuple(range(size)))
    records: list[Record] = []
    collectives = messages = 0
    for place, call in enumerate(program):
        if isinstance(call, str):
            changes = {"state": State.COMPLETED} if call == "done" else {"asynchronous": True, "awaited": False}
            records[-1] = replace(records[-1], **changes)
            continue
        p2p = call.op in ("send", "recv")
        collectives, messages = collectives + (not p2p), messages + p2p
        records.append(
            Record(
                "0",
                collectives,
                call,
                Source("train.py", 10 * rank + place, "step", call.op),
                State.STARTED,
                awaited=True,
                p2p_sequence=messages if p2p else 0,
                scheduled_ns=(place + 1) * SECOND,
            )
        )
    found = trace_of(rank, size, [world], records, mode="record", events=events)
    if len(found.slots):
        found.slots["flags"][0] |= ON_DEVICE
    return found


def traces_of(programs: Mapping[int, Program]) -> list[MemoryTrace]:
    return [trace(rank, len(programs), program) for rank, program in programs.items()]


def stall(*blocked: int, busy: Sequence[int] = ()) -> Stall:
    return Stall(100 * SECOND, 130 * SECOND, blocked=frozenset(blocked), busy=frozenset(busy))


def running(count: int) -> LaunchOutcome:
    return LaunchOutcome({rank: RankExit(None) for rank in range(count)})


def found_in(programs: Mapping[int, Program], seen: Stall | None) -> Finding:
    [finding] = judge(traces_of(programs), running(len(programs)), seen).findings
    return finding


SEND, RECEIVE = message("send", 1), message("recv", 1)
STANDING: dict[str, tuple[Program, Program]] = {
    "send": ([SEND], [BARRIER]),
    "receive": ([RECEIVE], [BARRIER]),
    "batch": ([SEND, RECEIVE], [BARRIER]),
    "hosts ran ahead": ([SEND, BARRIER], [BARRIER]),
    "far ahead": ([SEND, SUM, BARRIER, SUM, SUM], [SUM, BARRIER]),
    "behind others": ([SUM, "done", SEND, BARRIER], [SUM, "done", BARRIER]),
    "a receive, far ahead": ([RECEIVE, BARRIER, SUM], [BARRIER, SUM]),
}
"""What rank 0 makes, for whose message rank 1 has no other end, and what the others make."""


@pytest.mark.parametrize("blocked", [True, False], ids=["seen to wait", "in item()"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", STANDING)
def test_the_message_is_named_where_the_others_wait_in_a_collective(name: str, size: int, blocked: bool) -> None:
    mine, others = STANDING[name]
    programs = {rank: others if rank else mine for rank in range(size)}
    seen = stall(*range(0 if blocked else 1, size))
    finding = found_in(programs, seen)
    assert (finding.code, finding.severity, finding.ranks, finding.culprits) == ("SC304", Severity.ERROR, (0, 1), ())
    assert [side.ranks for side in finding.sides] == [(0,), (1,)]
    op, lacks = ("recv", "send") if RECEIVE in mine and SEND not in mine else ("send", "receive")
    assert f"the device of rank 0 waits in {op} #1" in finding.message
    assert f"has made no {lacks} for it before" in finding.message


def test_it_is_proved_only_where_the_host_is_seen_to_wait() -> None:
    traces = traces_of({0: [SEND], 1: [BARRIER]})
    assert standstill(traces, running(2), stall(0, 1))[1]
    findings, proved = standstill(traces, running(2), stall(1))
    assert ([finding.code for finding in findings], proved) == (["SC304"], False)
    # A host that ran ahead to the collective behind its message has no other call to come to.
    assert standstill(traces_of({0: [SEND, BARRIER], 1: [BARRIER]}), running(2), stall(1))[1]


def test_a_rank_that_is_busy_or_slow_may_still_come() -> None:
    """As before: it is late, and no message is said to lack."""
    for seen in (stall(0), stall(), stall(0, busy=[1])):
        findings, proved = standstill(traces_of({0: [SEND], 1: []}), running(2), seen)
        assert ([(one.code, one.culprits) for one in findings], proved) == ([("SC201", (1,))], False)
    # Rank 2 keeps the others in the barrier.
    finding = found_in({0: [SEND], 1: [BARRIER], 2: []}, stall(1))
    assert (finding.code, finding.culprits) == ("SC201", (2,))


def test_a_message_that_nobody_waits_for_holds_up_no_host() -> None:
    """The host is busy elsewhere, comes to the barrier later, and rank 1 receives behind it."""
    finding = found_in({0: [SEND, "async"], 1: [BARRIER]}, stall(1))
    assert finding.code == "SC201"


def test_two_messages_that_wait_for_each_other_are_a_deadlock() -> None:
    finding = found_in({0: [SEND], 1: [message("send", 0)]}, stall(0, 1))
    assert (finding.code, finding.ranks) == ("SC204", (0, 1))


def test_messages_with_two_ends_are_silent() -> None:
    programs = {0: [SEND, BARRIER], 1: [message("recv", 0), BARRIER]}
    findings, proved = standstill(traces_of(programs), running(2), stall(0, 1))
    assert ([one.culprits for one in findings], proved) == ([()], False)
    assert findings[0].code == "SC201"


def test_the_receiver_has_ended() -> None:
    ended = [trace(0, 2, [SEND]), trace(1, 2, [], Event("exit", 3 * SECOND, {}))]
    [finding] = judge(ended, LaunchOutcome({0: RankExit(None), 1: RankExit(0, 3 * SECOND)}), stall(0)).findings
    assert (finding.code, finding.ranks) == ("SC304", (0, 1))
    assert "rank 1 ended" in finding.message


def test_what_torchs_watchdog_ends_is_explained() -> None:
    exits = {rank: RankExit(-6, 600 * SECOND) for rank in range(2)}
    [finding] = judge(traces_of({0: [SEND], 1: [BARRIER]}), LaunchOutcome(exits)).findings
    assert (finding.code, finding.ranks) == ("SC304", (0, 1))


def test_a_barrier_is_a_devices_where_another_rank_tells() -> None:
    one, other = traces_of({0: [SEND], 1: [BARRIER]})
    assert queued(other).tolist() == [False]
    assert device_lives([other]) == frozenset()
    assert device_lives([one, other]) == frozenset(lives(other))
    assert DeviceCalls([one, other]).queued(other).tolist() == [True]
