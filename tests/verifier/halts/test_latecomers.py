"""Ranks that come after others gave up: they are the culprits, and those who waited are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

SECOND, EPOCH = 10**9, 1000
BUFFER = (Buffer((4,), "float32"),)
CALL = Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op="sum")
WORLD = Group("0", "default_pg", (0, 1, 2))
TIMED_OUT = "Timed out waiting 4000ms for recv operation to complete"
CLOSED = "Connection closed by peer [127.0.0.1]:21641"


def call(sequence: int, begin: float, end: float, state: State = State.COMPLETED, made: Call = CALL) -> Record:
    line = Source("train.py", 10 + sequence, "step", "dist.all_reduce(x)")
    times = (int((EPOCH + moment) * SECOND) for moment in (begin, begin, end))
    return Record(WORLD.name, sequence, made, line, state, False, True, 0, *times)


def failed(record: Record, message: str, raised: str = "") -> list[Event]:
    about = {"type": "RuntimeError", "message": message, "source": ["train.py", 11, "step", ""]}
    where = {"group": record.group, "sequence": record.sequence, "function": record.call.op}
    at = record.finished_ns
    ended = {**about, "message": raised or message, "api": None}
    return [Event("failed", at, {**about, **where}), Event("exception", at + SECOND // 10, ended)]


def rank(number: int, records: Sequence[Record], events: Sequence[Event] = (), mode: str = "record") -> MemoryTrace:
    return trace_of(number, 3, [WORLD], records, mode=mode, events=events)


def job(*, late_by: float = 4.0, ahead: float = 0.0, raised: str = "") -> Report:
    """Rank 1 comes to collective 2 ``late_by`` seconds after the others gave up; its clock is ``ahead``."""
    before = call(1, 1, 1.1)
    gave_up = [call(2, 2 + place / 100, 6 + place / 100, State.FAILED) for place in range(2)]
    came = call(2, 6 + late_by + ahead, 6.01 + late_by + ahead, State.FAILED)
    first = call(1, 1 + ahead, 1.1 + ahead)
    return judge(
        [
            rank(0, [before, gave_up[0]], failed(gave_up[0], TIMED_OUT, raised)),
            rank(1, [first, came], failed(came, CLOSED)),
            rank(2, [before, gave_up[1]], failed(gave_up[1], CLOSED)),
        ]
    )


@pytest.mark.parametrize("raised", ["", "the step failed"], ids=["torch's own", "another exception"])
def test_who_comes_after_the_others_gave_up_is_the_culprit(raised: str) -> None:
    [found] = job(raised=raised).findings
    assert (found.code, found.culprits, found.ranks) == ("SC201", (1,), (0, 1))
    assert "rank 1 came to all_reduce (collective 2) 4.0 s after rank 0 had given up there" in found.message
    assert "waited 4.0 s" in found.message


def test_a_clock_that_is_ahead_makes_nobody_late() -> None:
    """Rank 1's clock is a minute ahead, as the collective before shows; it came a second before the others gave up."""
    assert all(found.code != "SC201" for found in job(late_by=-1, ahead=60).findings)


def test_a_clock_that_is_behind_hides_no_lateness() -> None:
    [found] = job(late_by=4, ahead=-60).findings
    assert (found.code, found.culprits) == ("SC201", (1,))


def test_ranks_that_lost_a_peer_are_no_culprits_where_nobody_is_known_to_be_late() -> None:
    [found] = job(late_by=-1).findings
    assert (found.code, found.culprits) == ("SC701", ())


@pytest.mark.parametrize("stood_until", [9, 5.99])
def test_a_rank_that_stood_in_another_call_is_not_blamed(stood_until: float) -> None:
    """It is held up there when the others give up, or has just given up itself, for which a thread comes here."""
    pair = Group("1", "pair", (1, 2))
    gave_up, came = call(1, 2, 6, State.FAILED), call(1, 10, 10.1, State.FAILED)
    stood = replace(call(1, 1, stood_until, State.COMPLETED if stood_until > 6 else State.FAILED), group="1")
    [found] = judge(
        [
            rank(0, [gave_up], failed(gave_up, TIMED_OUT)),
            trace_of(1, 3, [WORLD, pair], [stood, came], mode="record", events=failed(came, CLOSED)),
            trace_of(2, 3, [WORLD, pair], [stood, call(1, 3, 6.1, State.FAILED)], mode="record"),
        ]
    ).findings
    assert (found.code, found.culprits) == ("SC701", ())


def test_a_call_that_failed_at_once_held_nobody_up() -> None:
    pair = Group("1", "pair", (1, 2))
    gave_up, came = call(1, 2, 6, State.FAILED), call(1, 10, 10.1, State.FAILED)
    lost = replace(call(1, 3, 3.5, State.FAILED), group="1")
    found = judge(
        [
            rank(0, [gave_up], failed(gave_up, TIMED_OUT)),
            trace_of(1, 3, [WORLD, pair], [lost, came], mode="record", events=failed(came, CLOSED)),
            trace_of(2, 3, [WORLD, pair], [lost, call(1, 3, 6.1, State.FAILED)], mode="record"),
        ]
    ).findings
    assert [(one.code, one.culprits) for one in found if one.code == "SC201"] == [("SC201", (1,))]


def test_a_message_that_is_sent_too_late_is_its_senders_fault() -> None:
    wanted = Call("recv", "recv", (), BUFFER, peer=1, tag=0)
    sent = Call("send", "send", BUFFER, (), peer=0, tag=0)

    def message(made: Call, begin: int, end: int) -> Record:
        line = Source("train.py", 7, "step", f"dist.{made.op}(x)")
        times = begin * SECOND, begin * SECOND, end * SECOND
        return Record(WORLD.name, 0, made, line, State.FAILED, False, True, 1, *times)

    got, given = message(wanted, 1, 5), message(sent, 8, 9)
    [found] = judge(
        [rank(0, [got], failed(got, TIMED_OUT)), rank(1, [given], failed(given, CLOSED)), rank(2, [], [])]
    ).findings
    assert (found.code, found.culprits) == ("SC201", (1,))
    assert "came to recv (message 1) 3.0 s after rank 0 had given up" in found.message
