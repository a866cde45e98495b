"""Messages that meet and disagree, messages that do not meet, and everything that must stay silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import LaunchOutcome, MemoryTrace, RankExit
from simcoll.spec.call import ANY_SOURCE, Buffer, Call
from simcoll.verifier.agreement.p2p_matching import match_messages
from simcoll.verifier.agreement.p2p_mismatches import disagreement
from simcoll.verifier.findings.finding import Finding, Severity
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

RANKS = 4
WORLD = Group("0", "default_pg", tuple(range(RANKS)))
SECOND = 10**9
CONNECTION = "Timed out waiting 4000ms for recv operation to complete"


def message(op: str, peer: int, size: int = 4, dtype: str = "float32", tag: int = 0, device: str = "cpu") -> Call:
    buffers = (Buffer((size,), dtype, device),)
    if op == "send":
        return Call("send", "send", inputs=buffers, peer=peer, tag=tag)
    return Call("recv", "recv", outputs=buffers, peer=peer, tag=tag)


def any_source(size: int = 4, *, tag: int = 0, took: int = ANY_SOURCE) -> Call:
    return Call("recv", "recv_anysource", outputs=(Buffer((size,), "float32"),), peer=took, tag=tag)


def barrier() -> Call:
    return Call("barrier", "barrier")


def made(call: Call, number: int, *, line: int, state: State = State.COMPLETED, awaited: bool = True) -> Record:
    at = number * SECOND
    finished = 0 if state in (State.SCHEDULED, State.STARTED) else at + SECOND // 2
    source = Source("train.py", line, "step", "exchange()")
    p2p = call.op in ("send", "recv")
    return Record(
        "0",
        1,
        call,
        source,
        state,
        awaited=awaited,
        p2p_sequence=number if p2p else 0,
        scheduled_ns=at,
        finished_ns=finished,
    )


def rank(number: int, calls: Sequence[Call], *events: Event, last: State = State.COMPLETED, **how: bool) -> MemoryTrace:
    """One rank's trace: its calls in order, the line of each its op's, the last one in another state."""
    records = [made(call, place, line=10 if call.op == "send" else 20) for place, call in enumerate(calls, 1)]
    if records and last is not State.COMPLETED:
        records[-1] = made(calls[-1], len(calls), line=records[-1].source.line, state=last, **how)
    return trace_of(number, RANKS, [WORLD], records, events=events)


def ended(at: int = 100) -> Event:
    return Event("exit", at * SECOND, {})


def failed(at: int = 9, kind: str = "RuntimeError", text: str = CONNECTION) -> Event:
    data: dict[str, object] = {"type": kind, "message": text, "source": ["train.py", 20, "step", ""], "api": None}
    return Event("exception", at * SECOND, data)


def findings(*traces: MemoryTrace, outcome: LaunchOutcome | None = None) -> list[Finding]:
    return list(judge(traces, outcome).findings)


def codes(*traces: MemoryTrace) -> list[str]:
    return [finding.code for finding in findings(*traces)]


def test_a_receive_that_is_too_large_is_named_with_both_lines() -> None:
    (found,) = findings(rank(0, [message("send", 1, 4)], ended()), rank(1, [message("recv", 0, 6)], ended()))
    assert (found.code, found.ranks, found.culprits, found.differing) == ("SC301", (0, 1), (), ("count",))
    assert found.message == "rank 0 sends 4 elements to rank 1, which receives into 6 elements"
    assert [side.sources[0].source.line for side in found.sides] == [10, 20]


def test_the_abort_of_a_receive_that_is_too_small_is_its_consequence() -> None:
    traces = [
        rank(0, [message("send", 1, 10)]),
        rank(1, [message("recv", 0, 8)], last=State.STARTED),
    ]
    exits = {0: RankExit(-15, 9 * SECOND), 1: RankExit(-6, 5 * SECOND)}
    (found,) = findings(*traces, outcome=LaunchOutcome(exits))
    assert found.code == "SC301"


@pytest.mark.parametrize(
    ("sent", "received", "code"),
    [
        (("float32", 8), ("int32", 8), "SC302"),
        (("float64", 8), ("float32", 8), "SC302"),
        (("bfloat16", 8), ("float16", 8), "SC302"),
        (("float64", 8), ("float32", 16), "SC302"),
        (("uint8", 8), ("int8", 8), "SC302"),
        (("uint8", 8), ("float32", 8), "SC302"),
        (("uint8", 32), ("float32", 8), None),
        (("float32", 16), ("complex64", 8), None),
        (("float32", 0), ("int64", 0), None),
        (("float32", 0), ("float32", 3), "SC301"),
        (("bool", 8), ("bool", 8), None),
    ],
)
def test_what_two_ends_may_differ_in(sent: tuple[str, int], received: tuple[str, int], code: str | None) -> None:
    send, receive = message("send", 1, sent[1], sent[0]), message("recv", 0, received[1], received[0])
    found = disagreement(send, receive, 0, 1)
    assert (None if found is None else found.rule.code) == code


def test_messages_of_one_tag_meet_in_order_and_tags_in_any() -> None:
    sends = [message("send", 1, size, tag=tag) for size, tag in ((1, 5), (2, 6), (3, 5))]
    receives = [message("recv", 0, size, tag=tag) for size, tag in ((2, 6), (1, 5), (3, 5))]
    assert codes(rank(0, sends, ended()), rank(1, receives, ended())) == []
    larger = [receives[0], receives[2], receives[2]]
    (found,) = findings(rank(0, sends, ended()), rank(1, larger, ended()))
    assert found.message == "rank 0 sends 1 element to rank 1, which receives into 3 elements"


def test_repeated_mismatches_from_the_same_lines_are_one_finding() -> None:
    traces = (rank(0, [message("send", 1, 4)] * 5, ended()), rank(1, [message("recv", 0, 6)] * 5, ended()))
    (found,) = findings(*traces)
    assert "4 more from these lines" in found.message


def test_messages_that_agree_are_counted() -> None:
    sends, receives = [message("send", 1, size) for size in (4, 8, 8)], [message("recv", 0, 8)] * 3
    report = judge([rank(0, sends, ended()), rank(1, receives, ended())])
    assert (report.agreed, report.messages, [one.code for one in report.findings]) == (0, 2, ["SC301"])
    assert judge([rank(0, [], ended()), rank(1, [], ended())]).messages == 0


def test_ranks_that_fail_alike_are_one_side() -> None:
    texts = ["no checkpoint"] * 3 + ["no optimiser"]
    raised = [failed(8 + (number != 1), "ValueError", text) for number, text in enumerate(texts)]
    (found,) = findings(*(rank(number, [barrier()], event) for number, event in enumerate(raised)))
    assert (found.code, found.ranks) == ("SC701", (0, 1, 2, 3))
    assert found.message.startswith("rank 1 raised ValueError: no checkpoint, and so did ranks 0 and 2-3")
    assert [side.ranks for side in found.sides] == [(0, 1, 2), (3,)]
    assert found.sides[0].note.startswith("raised ValueError: no checkpoint; its last call was barrier #1")


def test_the_majority_of_a_ring_names_the_odd_rank() -> None:
    traces = []
    for number in range(RANKS):
        outgoing = message("send", (number + 1) % RANKS, 6 if number == 2 else 8)
        traces.append(rank(number, [outgoing, message("recv", (number - 1) % RANKS, 8)], ended()))
    (found,) = findings(*traces)
    assert (found.code, found.ranks, found.culprits) == ("SC301", (2, 3), (2,))


def test_a_rank_that_sends_alone_from_a_line_is_not_blamed_for_a_round_that_its_receiver_left_out() -> None:
    def of_line(number: int, calls: Sequence[tuple[Call, int]]) -> MemoryTrace:
        records = [made(call, place, line=line) for place, (call, line) in enumerate(calls, 1)]
        last, line = calls[-1]
        records[-1] = made(last, len(calls), line=line, state=State.STARTED)
        return trace_of(number, RANKS, [WORLD], records)

    first = of_line(0, [(message("send", 1, size), 10) for size in (8, 6, 8)])
    passed = [
        (message(op, peer, size), line) for size in (8, 6) for op, peer, line in (("recv", 0, 20), ("send", 2, 30))
    ]
    middle = of_line(1, [*passed, (message("recv", 0, 6), 20)])
    last = of_line(2, [(message("recv", 1, size), 20) for size in (8, 6, 8)])
    found = next(one for one in findings(first, middle, last) if one.code == "SC301")
    assert (found.ranks, found.culprits) == ((0, 1), ())


def test_one_receiver_at_odds_with_all_senders_is_the_culprit() -> None:
    collector = rank(0, [message("recv", peer, 8) for peer in (1, 2, 3)], ended())
    workers = [rank(peer, [message("send", 0, 5)], ended()) for peer in (1, 2, 3)]
    (found,) = findings(collector, *workers)
    assert (found.ranks, found.culprits) == ((0, 1, 2, 3), (0,))


def test_a_receive_that_ended_well_did_not_meet_a_larger_message() -> None:
    assert codes(rank(0, [message("send", 1, 10)], ended()), rank(1, [message("recv", 0, 8)], ended())) == []


def test_on_another_device_tags_do_not_count() -> None:
    sends = [message("send", 1, 4, tag=tag, device="cuda") for tag in (1, 2)]
    receives = [message("recv", 0, 4, tag=tag, device="cuda") for tag in (1, 2)]
    assert codes(rank(0, sends, ended()), rank(1, receives, ended())) == []
    other = [message("recv", 0, 6, tag=tag, device="cuda") for tag in (1, 2)]
    assert codes(rank(0, sends, ended()), rank(1, other, ended())) == ["SC301"]
    # With tags in another order it depends on the backend who meets whom.
    assert codes(rank(0, sends, ended()), rank(1, other[::-1], ended())) == []


def test_an_abort_in_a_receive_from_any_source_is_laid_to_the_message_that_is_too_large() -> None:
    collector = rank(0, [any_source(took=1), any_source(took=2), any_source()], last=State.STARTED)
    workers = [rank(peer, [message("send", 0, 6 if peer == 3 else 4)]) for peer in (1, 2, 3)]
    exits = {peer: RankExit(-15, 9 * SECOND) for peer in (1, 2, 3)} | {0: RankExit(-6, 5 * SECOND)}
    (found,) = findings(collector, *workers, outcome=LaunchOutcome(exits))
    assert (found.code, found.ranks, found.culprits) == ("SC301", (0, 3), (3,))
    # Another signal has another cause.
    (found,) = findings(collector, *workers, outcome=LaunchOutcome(exits | {0: RankExit(-9, 5 * SECOND)}))
    assert found.code == "SC701"


def test_tags_that_differ_while_both_wait() -> None:
    traces = [
        rank(0, [message("send", 1), message("send", 1, tag=1)], failed(), last=State.FAILED),
        rank(1, [message("recv", 0), message("recv", 0, tag=2)], failed(), last=State.FAILED),
    ]
    (found,) = findings(*traces)
    assert (found.code, found.ranks, found.differing) == ("SC303", (0, 1), ("tag",))


@pytest.mark.parametrize(
    ("send", "receive", "others", "culprits"),
    [(7, 0, (0, 0), (2,)), (0, 7, (0, 0), (3,)), (1, 2, (0, 0), ()), (1, 0, (0, 1), ()), (7, 0, (), ())],
)
def test_the_tag_that_is_unlike_those_of_other_ranks_at_its_line_is_the_wrong_one(
    send: int, receive: int, others: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    traces = [
        rank(2, [message("send", 3, tag=send)], failed(), last=State.FAILED),
        rank(3, [message("recv", 2, tag=receive)], failed(), last=State.FAILED),
    ]
    traces += [rank(0, [message("send", 1, tag=tag) for tag in others])]
    traces += [rank(1, [message("recv", 0, tag=tag) for tag in others])]
    (found,) = findings(*traces)
    assert (found.code, found.ranks, found.culprits) == ("SC303", (2, 3), culprits)


@pytest.mark.parametrize(
    ("send", "receive", "others", "culprits"),
    [(7, 0, (0, 0), (2,)), (0, 7, (0, 0), (3,)), (1, 2, (0, 0), None), (7, 0, (), None), (0, 0, (0, 0), None)],
)
def test_a_message_of_another_tag_is_told_though_its_sender_has_gone_on(
    send: int, receive: int, others: tuple[int, ...], culprits: tuple[int, ...] | None
) -> None:
    calls = [message("send", 3, tag=send), message("recv", 3)]
    records = [made(calls[0], 1, line=10, state=State.STARTED, awaited=False), made(calls[1], 2, line=30)]
    records[1] = replace(records[1], state=State.STARTED, finished_ns=0)
    traces = [trace_of(2, RANKS, [WORLD], records)]
    traces += [rank(3, [message("recv", 2, tag=receive)], last=State.STARTED)]
    traces += [rank(0, [message("send", 1, tag=tag) for tag in others])]
    traces += [rank(1, [message("recv", 0, tag=tag) for tag in others])]
    exits = LaunchOutcome(dict.fromkeys(range(RANKS), RankExit(-15, 99 * SECOND)))
    found = [one for one in findings(*traces, outcome=exits) if one.code == "SC303"]
    assert [(one.ranks, one.culprits) for one in found] == ([] if culprits is None else [((2, 3), culprits)])
    assert all("sent rank 3 a message with tag" in one.message for one in found)


def test_ranks_that_hang_are_ended_from_outside() -> None:
    traces = [
        rank(0, [message("send", 1, tag=1)], last=State.STARTED),
        rank(1, [message("recv", 0, tag=2)], last=State.STARTED),
    ]
    exits = LaunchOutcome(dict.fromkeys((0, 1), RankExit(-15, 99 * SECOND)))
    assert [finding.code for finding in findings(*traces, outcome=exits)] == ["SC303"]


def test_other_tags_in_flight_when_something_else_failed_are_no_mismatch() -> None:
    traces = [
        rank(0, [message("send", 1, tag=1)], last=State.STARTED),
        rank(1, [message("recv", 0, tag=2)], last=State.STARTED),
        rank(2, [], failed(2, "KeyError", "'x'")),
    ]
    assert codes(*traces) == ["SC701"]


@pytest.mark.parametrize("op", ["send", "recv"])
def test_the_other_end_has_ended(op: str) -> None:
    traces = [rank(0, [message(op, 1)], failed(), last=State.FAILED), rank(1, [], ended(3))]
    (found,) = findings(*traces)
    assert (found.code, found.severity, found.ranks, found.culprits) == ("SC304", Severity.ERROR, (0, 1), ())
    assert "rank 1 ended" in found.message


@pytest.mark.parametrize("op", ["send", "recv"])
def test_the_other_end_is_busy(op: str) -> None:
    waiting = rank(0, [message(op, 1)], failed(), last=State.FAILED)
    (found,) = findings(waiting, rank(1, [barrier()]))
    assert (found.code, "busy elsewhere" in found.message) == ("SC304", True)
    assert "rank 0 gave up after " in found.message
    # While it has not failed, it may yet be served.
    assert codes(rank(0, [message("recv", 1)], last=State.STARTED), rank(1, [barrier()])) == []


def test_ranks_that_wait_for_each_other_lack_no_message() -> None:
    """Both send first, and neither comes to its receive: a deadlock, which is another finding."""
    traces = [rank(number, [message("send", 1 - number)], failed(), last=State.FAILED) for number in (0, 1)]
    assert "SC304" not in codes(*traces)


def test_who_waits_in_a_collective_may_still_come() -> None:
    traces = [
        rank(0, [message("recv", 1)], failed(), last=State.FAILED),
        rank(1, [barrier()], last=State.STARTED),
    ]
    assert "SC304" not in codes(*traces)


def test_nobody_sends_to_a_receive_from_any_source() -> None:
    took = [any_source(took=1), any_source(took=2)]
    collector = rank(0, [*took, any_source()], failed(), last=State.FAILED)
    workers = [rank(peer, [message("send", 0)] * (peer < 3), ended()) for peer in (1, 2, 3)]
    (found,) = findings(collector, *workers)
    assert (found.code, found.ranks) == ("SC304", (0, 1, 2, 3))
    # With a rank unheard, it may have sent.
    assert "SC304" not in codes(collector, *workers[:2])


def test_an_open_receive_from_any_source_may_take_any_message() -> None:
    traces = [
        rank(0, [message("send", 1, 9)], ended(), last=State.STARTED),
        rank(1, [any_source(4)], ended(), last=State.STARTED),
        *(rank(peer, [], ended()) for peer in (2, 3)),
    ]
    assert codes(*traces) == []


def test_the_order_of_any_source_and_a_stated_one_is_not_known() -> None:
    sends = [message("send", 1, 4), message("send", 1, 8)]
    receives = [any_source(8, took=0), message("recv", 0, 4)]
    assert codes(rank(0, sends, ended()), rank(1, receives, ended())) == []


def test_any_source_under_another_tag_leaves_a_lane_in_order() -> None:
    sends = [message("send", 1, 4, tag=1), message("send", 1, 4)]
    receives = [any_source(4, tag=1, took=0), message("recv", 0, 6)]
    assert codes(rank(0, sends, ended()), rank(1, receives, ended())) == ["SC301"]


def test_a_lost_message_is_a_warning_and_an_open_receive_is_none() -> None:
    lost = rank(0, [message("send", 1)], ended(), last=State.STARTED, awaited=False)
    (found,) = findings(lost, rank(1, [], ended()))
    assert (found.code, found.severity) == ("SC304", Severity.WARNING)
    assert codes(rank(0, [message("recv", 1)], ended(), last=State.STARTED), rank(1, [], ended())) == []
    # A send that failed and was handled is the program's business.
    assert codes(rank(0, [message("send", 1)], ended(), last=State.FAILED), rank(1, [], ended())) == []


def test_what_the_records_do_not_show_is_not_judged() -> None:
    sender, receiver = rank(0, [message("send", 1, 4)] * 3, ended()), rank(1, [message("recv", 0, 9)] * 3, ended())
    assert codes(sender, receiver) == ["SC301"]
    assert codes(replace(sender, dropped_p2p={0: 1}), receiver) == []
    assert codes(sender) == codes(receiver) == []
    # A receive that is done and has no send says that records are missing.
    assert codes(rank(0, [message("send", 1, 4)], ended()), receiver) == []
    assert codes(sender, trace_of(1, RANKS, [], [], events=[ended()])) == []


def test_what_a_wrapped_ring_still_shows() -> None:
    """The first messages are gone on one side; those that are not done have met nobody."""
    waiting = rank(1, [message("recv", 0, 4)] * 5, failed(), last=State.FAILED)
    sender = replace(rank(0, [message("send", 1, 9)] * 3, ended(3)), dropped_p2p={0: 7})
    assert codes(sender, waiting) == ["SC304"]
    # An isend that nobody waited for may be the one.
    pending = rank(0, [message("send", 1, 4)] * 3, ended(3), last=State.STARTED, awaited=False)
    assert "SC304" not in codes(replace(pending, dropped_p2p={0: 7}), waiting)
    # Of a tag that the ring no longer knows, nothing is known.
    assert "SC304" not in codes(replace(rank(0, [message("send", 1, 9, tag=3)], ended(3)), dropped_p2p={0: 7}), waiting)
    # Never waited for, perhaps received long ago: no lost message.
    clean = rank(0, [message("send", 1, 4)] * 3, ended(), last=State.STARTED, awaited=False)
    assert codes(replace(clean, dropped_p2p={0: 7}), rank(1, [message("recv", 0, 4)], ended())) == []


def test_refused_calls_meet_nobody() -> None:
    sender = rank(0, [message("send", 1, 9)], ended(), last=State.REJECTED)
    assert codes(sender, rank(1, [], ended())) == []


def test_a_group_made_again_starts_with_no_messages() -> None:
    groups = [WORLD, WORLD]
    sends = [made(message("send", 1, 4), 1, line=10, state=State.STARTED), made(message("send", 1, 8), 1, line=11)]
    receives = [made(message("recv", 0, 8), 1, line=20)]
    traces = []
    for number, records in ((0, sends), (1, receives)):
        trace = trace_of(number, RANKS, groups, records, events=[ended()])
        trace.slots["group"] = range(2 - len(records), 2)
        traces.append(trace)
    assert codes(*traces) == ["SC304"]


def test_unmatched_calls_are_listed_for_whoever_asks() -> None:
    traces = [rank(0, [message("send", 1), message("recv", 2)], last=State.STARTED), rank(1, []), rank(2, [])]
    unmatched = match_messages(traces).unmatched
    assert [(one.rank, one.peer, one.record.call.op, one.pending) for one in unmatched] == [
        (0, 2, "recv", True),
    ]


def test_who_of_those_that_say_the_same_was_the_first_is_not_told() -> None:
    raised = [failed(time, "ValueError", "no checkpoint") for time in (9, 8, 10)]
    (found,) = findings(*(rank(number, [barrier()], event) for number, event in enumerate(raised)))
    assert found.message == "ranks 0-2 raised ValueError: no checkpoint"
