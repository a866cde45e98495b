"""Programs that ranks ran alone, replayed together: where they stand, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import MemoryTrace, RankExit
from simcoll.dryrun.endings import RankEnding, RankEndings
from simcoll.dryrun.replay import replay_programs
from simcoll.dryrun.verdict import verdict
from simcoll.spec.call import ANY_SOURCE, Buffer, Call
from simcoll.verifier.findings.finding import Report
from tests.support.traces import trace_of

BUFFER = (Buffer((4,), "float32", "cpu"),)
STEP = 1000
CALLS = st.lists(st.sampled_from("AB"), max_size=8)


def program(rank: int, size: int, *steps: str) -> MemoryTrace:
    """One rank's record. ``A`` and ``B`` are collectives of two groups of all; ``a`` begins one of ``A``, ``w`` waits.

    ``>1`` sends to rank 1, ``<1`` receives from it, ``<*`` from any; ``(`` and ``[`` begin these, ``w`` waits for what
    was begun first; ``:7`` behind is a tag.
    """
    groups = [Group(name, "", tuple(range(size))) for name in "AB"]
    counts = dict.fromkeys(("A", "B", "message"), 0)
    records: list[Record] = []
    open_: list[int] = []
    for number, step in enumerate(steps, 1):
        now = 2 * number * STEP
        if step == "w":
            place = open_.pop(0)
            records[place] = _waited(records[place], now)
            continue
        record = _record(rank, step, counts, number, now)
        if step[0] in "a([":
            open_.append(len(records))
        else:
            record = _waited(record, now + STEP)
        records.append(record)
    end = [Event("exit", 2 * (len(steps) + 1) * STEP, {})]
    return trace_of(rank, size, groups, records, mode="record", events=end)


def _record(rank: int, step: str, counts: dict[str, int], line: int, now: int) -> Record:
    source = Source("train.py", line, "main")
    body, _, tag = step.partition(":")
    if body[0] in "<>([":
        counts["message"] += 1
        peer = ANY_SOURCE if body[1:] == "*" else int(body[1:])
        spelling = "recv_anysource" if peer == ANY_SOURCE else "send" if body[0] in ">(" else "recv"
        sends = spelling == "send"
        call = Call(
            "send" if sends else "recv",
            spelling,
            BUFFER if sends else (),
            () if sends else BUFFER,
            peer=peer,
            tag=int(tag or 0),
        )
        return Record("A", counts["A"], call, source, State.COMPLETED, False, False, counts["message"], now, now, 0)
    group = body.upper()
    counts[group] += 1
    call = Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op="sum")
    begun = body.islower()
    return Record(group, counts[group], call, source, State.COMPLETED, begun, False, 0, now, now, 0)


def _waited(record: Record, now: int) -> Record:
    return Record(
        record.group,
        record.sequence,
        record.call,
        record.source,
        record.state,
        record.asynchronous,
        True,
        record.p2p_sequence,
        record.scheduled_ns,
        record.started_ns,
        now,
    )


def job(*programs: str, ranks: Sequence[int] | None = None) -> list[MemoryTrace]:
    size = len(programs) if ranks is None else max(ranks) + 1
    chosen = range(len(programs)) if ranks is None else ranks
    return [program(rank, size, *text.split()) for rank, text in zip(chosen, programs, strict=True)]


def judged(traces: Sequence[MemoryTrace], cut: Sequence[int] = ()) -> Report:
    how = {trace.rank: RankEnding.STEPS_DONE if trace.rank in cut else RankEnding.FINISHED for trace in traces}
    exits = {trace.rank: RankExit(0, trace.events[-1].time_ns) for trace in traces}
    return verdict(RankEndings(how, exits, traces), traces[0].world_size).report


GOES_ON = {
    "nothing": ("", ""),
    "one order": ("A B A", "A B A"),
    "opposite orders, waited for later": ("a B w", "B a w"),
    "a send and its receive": (">1 A", "<0 A"),
    "both receive first, without waiting": ("[1 >1 w", "[0 >0 w"),
    "batches": ("(1 [1 w w A", "(0 [0 w w A"),
    "tags out of order": ("(1:1 (1:2 w w", "[0:2 [0:1 w w"),
    "from any source": ("<* <* A", ">0 A", ">0 A"),
    "a message that nobody waits for": ("(1 A", "A"),
    "sends that are waited for late": ("(1 (1 (1 w w w", "<0 <0 <0"),
}

STANDS = {
    "opposite orders": (("A B", "B A"), {0, 1}, "SC204"),
    "opposite orders of three": (("A B A B", "A B A B", "A B B A"), {0, 1, 2}, "SC204"),
    "no last call": (("A A", "A"), {0}, "SC702"),
    "both send first": ((">1 <1", ">0 <0"), {0, 1}, "SC204"),
    "never received": ((">1 A", "A"), {0, 1}, "SC304"),
    "never sent": (("<1", ""), {0}, "SC304"),
    "never sent, from any source": (("<* <*", ">0", ""), {0}, "SC304"),
    "another tag": ((">1:1", "<0:2"), {0, 1}, "SC303"),
    "behind a third": (("<1 A", "B >0 A", "A B"), {0, 1, 2}, "SC204"),
    "another peer": ((">2 A", "<0 A", "A"), {0, 1, 2}, "SC304"),
    "a wait for what was begun": (("a w", ""), {0}, "SC702"),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_all_come_to_their_ends(name: str) -> None:
    traces = job(*GOES_ON[name])
    assert replay_programs(traces, len(traces)).blocked == []
    assert not [finding for finding in judged(traces).findings if finding.severity.value == "error"]


@pytest.mark.parametrize("name", STANDS)
def test_who_stands_and_why(name: str) -> None:
    programs, stuck, code = STANDS[name]
    traces = job(*programs)
    assert set(replay_programs(traces, len(traces)).blocked) == stuck
    assert [finding.code for finding in judged(traces).findings] == [code]


def test_ranks_that_did_not_run_are_taken_to_come() -> None:
    traces = job("A >1 <2 <* B", "A B", ranks=(0, 3))
    assert replay_programs(traces, 4).blocked == []
    report = judged(traces)
    assert (report.findings, report.agreed) == ((), 2)


def test_what_ranks_would_call_behind_a_finding_does_not_count_as_agreed() -> None:
    first, second = job("A B A A B", "A B A A B")
    differs = replace(second.signatures[0], reduce_op="max")
    slots = second.slots.copy()
    slots["signature"][2] = len(second.signatures)
    traces = [first, replace(second, signatures=[*second.signatures, differs], slots=slots)]
    report = judged(traces)
    assert [(found.code, found.sequence) for found in report.findings] == [("SC104", 2)]
    assert report.agreed == 2


@pytest.mark.parametrize(("first", "second"), [("A A A", "A"), ("A >1 B", "A"), ("A <1", "A"), ("a a w w B", "A")])
def test_nothing_is_known_of_a_rank_after_it_was_ended(first: str, second: str) -> None:
    traces = job(first, second)
    assert replay_programs(traces, 2, unknown_after=(0, 1)).blocked == []
    assert judged(traces, cut=(0, 1)).findings == ()


def test_a_rank_that_was_ended_is_not_blamed_for_what_others_do() -> None:
    # Ranks 0 and 1 wait for each other whatever rank 2 would have done.
    traces = job("A A B", "A B A", "A")
    [finding] = judged(traces, cut=(2,)).findings
    assert (finding.code, finding.ranks) == ("SC204", (0, 1))


def test_a_call_that_is_skipped_is_named_where_the_run_would_stand_in_a_circle() -> None:
    traces = job(*["A B A B A B A B"] * 3, "A B B A B A B")
    assert len(replay_programs(traces, 4).blocked) == 4
    [finding] = judged(traces).findings
    assert (finding.code, finding.culprits) == ("SC204", (3,))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.permutations(range(4)), st.lists(st.sampled_from(["A", "B", "a w", "ring"]), max_size=12))
def test_programs_that_agree_come_to_their_ends_in_any_order(order: list[int], steps: list[str]) -> None:
    def text(rank: int) -> str:
        ring = "(" + f"{(rank + 1) % 4} [{(rank - 1) % 4} w w"
        return " ".join(ring if step == "ring" else step for step in steps)

    traces = job(*(text(rank) for rank in range(4)))
    assert replay_programs([traces[place] for place in order], 4).blocked == []


@given(
    st.permutations(range(3)), st.lists(st.sampled_from("AB"), max_size=8), st.lists(st.sampled_from("AB"), max_size=8)
)
def test_who_stands_does_not_depend_on_who_goes_first(order: list[int], usual: list[str], odd: list[str]) -> None:
    traces = job(" ".join(usual), " ".join(usual), " ".join(odd))
    once = replay_programs(traces, 3)
    again = replay_programs([traces[place] for place in order], 3)
    assert set(once.blocked) == set(again.blocked)
    assert all(once.threads[rank][0].at == again.threads[rank][0].at for rank in range(3))
