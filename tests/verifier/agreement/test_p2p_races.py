"""Receives from any source: which order of arrival the records leave open, and whose source does not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import ANY_SOURCE, Buffer, Call
from simcoll.verifier.agreement.p2p_races import _is_fixed, racing_receives, with_takers
from simcoll.verifier.findings.finding import Finding, RankSource, Severity, Side
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1, 2))


def send(peer: int, count: int = 4, tag: int = 0) -> Call:
    return Call("send", "send", (Buffer((count,), "float32", "cpu"),), (), peer=peer, tag=tag)


def recv(peer: int, count: int = 4, tag: int = 0, *, anybody: bool = False) -> Call:
    spelling = "recv_anysource" if anybody else "recv"
    return Call("recv", spelling, (), (Buffer((count,), "float32", "cpu"),), peer=peer, tag=tag)


BARRIER = Call("barrier", "barrier")


def played(rank: int, calls: Sequence[Call], world_size: int = 3) -> MemoryTrace:
    """The trace of a rank that made these calls, one after the other."""
    records, collectives, messages = [], 0, 0
    for number, call in enumerate(calls):
        line = Source("program.py", number + 1, "f", "")
        collectives, messages = collectives + (call.op == "barrier"), messages + (call.op != "barrier")
        place = {"p2p_sequence": messages if call.op != "barrier" else 0, "finished_ns": 1}
        records.append(Record(WORLD.name, collectives, call, line, State.COMPLETED, **place))
    return trace_of(rank, world_size, [WORLD], records)


def races(*ranks: Sequence[Call]) -> list[str]:
    """The findings on these ranks, each a list of calls."""
    return [one.message for one in racing_receives([played(rank, calls) for rank, calls in enumerate(ranks)])]


def test_messages_of_two_sizes_may_be_exchanged():
    sends = [send(0, 1), send(0, 8)]
    receives = [recv(peer, count, anybody=True) for peer in (1, 2) for count in (1, 8)]
    (found,) = races(receives, sends, sends)
    assert "the one from rank 2 may come first" in found


def test_messages_alike_may():
    assert not races([recv(1, anybody=True), recv(2, anybody=True)], [send(0)], [send(0)])


@pytest.mark.parametrize("tags", [(1, 2), (2, 1)])
def test_tags_keep_them_apart(tags):
    one, other = tags
    sends = [send(0, 1, one), send(0, 8, other)]
    receives = [recv(peer, count, tag, anybody=True) for peer in (1, 2) for count, tag in ((1, one), (8, other))]
    assert not races(receives, sends, sends)


def test_a_meeting_between_them_keeps_them_apart():
    one = [send(0, 1), send(0, 8), BARRIER]
    other = [BARRIER, send(0, 1), send(0, 8)]
    receives = [recv(1, 1, anybody=True), recv(1, 8, anybody=True), BARRIER]
    receives += [recv(2, 1, anybody=True), recv(2, 8, anybody=True)]
    assert not races(receives, one, other)


def test_an_answer_keeps_them_apart():
    receives = [recv(1, 1, anybody=True), recv(1, 8, anybody=True), send(2)]
    receives += [recv(2, 1, anybody=True), recv(2, 8, anybody=True)]
    assert not races(receives, [send(0, 1), send(0, 8)], [recv(0), send(0, 1), send(0, 8)])


def test_a_receive_that_took_nothing_tells_nothing():
    assert not races([recv(ANY_SOURCE, anybody=True)], [send(0)], [send(0)])


def test_a_rank_without_a_record_may_have_met_them():
    sends = [send(0, 1), send(0, 8)]
    receives = [recv(peer, count, anybody=True) for peer in (1, 2) for count in (1, 8)]
    ranks = [receives, sends, sends]
    assert not racing_receives([played(rank, calls, world_size=4) for rank, calls in enumerate(ranks)])
    assert racing_receives([played(rank, calls) for rank, calls in enumerate(ranks)])


@pytest.mark.parametrize(("receives", "sends", "named"), [("any", 1, True), ("any", 2, False), ("one", 1, False)])
def test_the_receive_that_took_the_message_of_a_later_one_is_named(receives: str, sends: int, named: bool):
    waiting = played(0, [recv(1, anybody=receives == "any"), recv(2, anybody=True), recv(1)])
    waiting.slots["state"][-1] = State.STARTED
    traces = [waiting, played(1, [send(0)] * sends), played(2, [send(0)])]
    side = Side((0,), recv(1), (RankSource(0, Source("program.py", 3, "f", "")),))
    (found,) = with_takers([Finding("SC304", Severity.ERROR, "it waits", sides=(side,))], traces)
    taken = "a receive of rank 0 from any source, at program.py:1 in f, had taken the last message of rank 1"
    assert found.message == (f"it waits; {taken}" if named else "it waits")


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("dist.recv(x)\ndist.recv(y, src=1)", True),
        ("dist.recv(x)\ndist.recv(y, 1)", True),
        ("dist.recv(x)\nfor other in range(1, world):\n    dist.recv(y, other)", True),
        ("if rank == 0:\n    dist.recv(x)\n    dist.recv(y, src=rank + 1)", True),
        ("work = dist.irecv(x)\nwork.wait()\ndist.irecv(y, src=world - 1).wait()", True),
        ("who = dist.recv(x)\ndist.recv(y, src=who)", False),
        ("who = dist.recv(x)\nother = 3 - who\ndist.recv(y, src=other)", False),
        ("dist.recv(x)\ndist.recv(y, src=int(x))", False),
        ("who = dist.recv(x)\nif who == 2:\n    dist.recv(y, src=1)", False),
        (
            "who = dist.recv(x)\nfor one in others:\n    if one == who:\n        continue\n    dist.recv(y, src=one)",
            False,
        ),
        ("seen = set()\nseen.add(dist.recv(x))\nfor other in {1, 2} - seen:\n    dist.recv(y, src=other)", False),
        ("while (who := dist.recv(x)) != 2:\n    pass\ndist.recv(y, src=1)", True),
        ("dist.recv(x)\ndist.recv(y, src=queue.get())", False),
        ("dist.recv(x)\n[dist.recv(y, src=1), dist.recv(y, src=2)]", False),
    ],
)
def test_a_source_that_depends_on_what_came_is_not_fixed(tmp_path: Path, text: str, fixed: bool):
    path = tmp_path / "program.py"
    path.write_text(text)
    lines = text.splitlines()
    earlier, later = (
        Source(str(path), number, "<module>", line.strip())
        for number, line in (
            next(one for one in enumerate(lines, 1) if "recv(x)" in one[1]),
            [one for one in enumerate(lines, 1) if "(y" in one[1]][-1],
        )
    )
    assert _is_fixed(later, earlier) == fixed


@pytest.mark.parametrize("parameter", ["peer", "rank"])
def test_a_parameter_may_have_been_chosen_by_the_caller(tmp_path: Path, parameter: str):
    path = tmp_path / "program.py"
    path.write_text(f"def f(x, y, {parameter}):\n    dist.recv(x)\n    dist.recv(y, src={parameter})\n")
    earlier = Source(str(path), 2, "f", "dist.recv(x)")
    assert _is_fixed(Source(str(path), 3, "f", f"dist.recv(y, src={parameter})"), earlier) == (parameter == "rank")


def test_a_program_that_has_changed_tells_nothing(tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_text("dist.recv(x)\ndist.recv(y, src=1)\n")
    assert not _is_fixed(Source(str(path), 2, "<module>", "dist.recv(y, src=2)"), Source(str(path), 1, "<module>", ""))
