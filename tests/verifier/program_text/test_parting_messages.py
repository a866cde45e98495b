"""A rank that passes by a receive parted from those that make it, not from the rank that sends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace, record_at
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, RankSource, Severity, Side
from simcoll.verifier.program_text.parting import ran_by, with_partings
from simcoll.verifier.program_text.parting_messages import with_partings_of_messages
from tests.support.effort import lines_run
from tests.support.traces import trace_of

TASK = (Buffer((2,), "float32"),)
WORLD = Group("0", "default_pg", (0, 1, 2, 3))
BARRIER = Call("barrier", "barrier")
PROGRAM = """
    if rank == 0:
        for worker in range(1, 4):
            dist.send(task, worker)  # send
    elif rank < 3:
        dist.recv(task, 0)  # recv
    dist.barrier()  # barrier
"""


def at(path: Path, mark: str) -> Source:
    lines = path.read_text().splitlines()
    number = next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
    return Source(str(path), number, "<module>", lines[number - 1].strip())


def message(path: Path, op: str, peer: int, number: int, state: State = State.COMPLETED) -> Record:
    call = Call(op, op, TASK if op == "send" else (), () if op == "send" else TASK, peer=peer, tag=0)
    return Record("0", 0, call, at(path, op), state, scheduled_ns=number * 10, p2p_sequence=number)


def job(path: Path, *, passed_by: bool) -> list[MemoryTrace]:
    """Rank 0 waits for rank 3 to receive; ``passed_by``: rank 3 has done so before."""
    sends = [message(path, "send", peer, peer) for peer in (1, 2)]
    sends.append(message(path, "send", 3, 3, State.STARTED))
    barrier = Record("0", 1, BARRIER, at(path, "barrier"), State.STARTED, scheduled_ns=99)
    received = [message(path, "recv", 0, 1)]
    workers = [trace_of(rank, 4, [WORLD], [*received, barrier]) for rank in (1, 2)]
    last = trace_of(3, 4, [WORLD], [*(received if passed_by else []), barrier])
    return [trace_of(0, 4, [WORLD], sends), *workers, last]


@pytest.mark.parametrize("code", ["SC204", "SC304"])
@pytest.mark.parametrize("passed_by", [False, True])
def test_the_fork_is_that_between_the_peers(code: str, passed_by: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(dedent(PROGRAM).lstrip())
    traces = job(path, passed_by=passed_by)
    waits = Call("send", "send", TASK, peer=3, tag=0)
    sender = Side((0,), waits, (RankSource(0, at(path, "send")),))
    others = Side((3,), BARRIER, (RankSource(3, at(path, "barrier")),))
    finding = Finding(code, Severity.ERROR, "", ranks=(0, 3), sides=(sender, others))
    ran = ran_by(traces)
    [told] = with_partings_of_messages(with_partings([finding], ran), traces, ran)
    if not passed_by:
        assert told.parted is not None
        assert told.parted.source.code.startswith("elif rank < 3:")
        assert told.parted.sides == (((1, 2), "took it"), ((3,), "did not take it"))
    else:
        # Those of a deadlock part where the ranks of its waits do.
        assert (None if told.parted is None else told.parted.source.line) == (1 if code == "SC204" else None)


PIPELINE = {
    "a round that is left out": """
        for micro in range(4):
            if micro == skip:
                continue
            dist.recv(x, 0)  # recv
            dist.send(x, 2)  # send
        dist.all_reduce(x)  # barrier
    """,
    "a round that is left out in a schedule": """
        for kind, micro in schedule:
            if kind == "F":
                if rank == 1 and micro == 2:
                    continue
                dist.recv(x, 0)  # recv
                dist.send(x, 2)  # send
            else:
                dist.all_reduce(x)  # barrier
    """,
}
LEFT_OUT = {"a round that is left out": "if micro == skip:"}


@pytest.mark.parametrize("code", ["SC204", "SC304"])
@pytest.mark.parametrize("shape", PIPELINE)
def test_along_a_pipeline_the_exit_of_a_round_is_named(shape: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(dedent(PIPELINE[shape]).lstrip())
    sends = [message(path, "send", 1, number) for number in (1, 2, 3)]
    sends.append(message(path, "send", 1, 4, State.STARTED))
    barrier = Record("0", 1, BARRIER, at(path, "barrier"), State.STARTED, scheduled_ns=99)
    received = [message(path, "recv", 0, number) for number in (1, 3, 5)]
    sent = [message(path, "send", 2, number) for number in (2, 4, 6)]
    passed = sorted([*received, *sent], key=lambda one: one.scheduled_ns)
    traces = [trace_of(0, 3, [WORLD], sends), trace_of(1, 3, [WORLD], [*passed, barrier])]
    [told] = _unmatched(path, traces, waits=Call("send", "send", TASK, peer=1, tag=0), peer=1, code=code)
    assert told.parted is not None
    assert told.parted.source.code == LEFT_OUT.get(shape, "if rank == 1 and micro == 2:")
    assert told.parted.sides == (((0,), "did not take it"), ((1,), "took it"))


def test_the_exit_by_which_roles_part_is_not_named(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = """
        for task in tasks:
            if rank != 0:
                break
            dist.send(task, 1)  # send
        dist.barrier()  # barrier
    """
    path.write_text(dedent(text).lstrip())
    barrier = Record("0", 1, BARRIER, at(path, "barrier"), State.STARTED, scheduled_ns=99)
    sends = [message(path, "send", 1, 1, State.STARTED)]
    traces = [trace_of(0, 3, [WORLD], sends), trace_of(1, 3, [WORLD], [barrier])]
    [told] = _unmatched(path, traces, waits=Call("send", "send", TASK, peer=1, tag=0), peer=1)
    assert told.parted is None


def test_the_exit_behind_the_last_call_of_a_rank_is_named_not_one_of_a_helper(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = """
        def talk(kind):
            if kind == "send" and is_last_stage:
                return
            dist.batch(x)  # send

        while True:
            talk("recv")  # receives
            talk("send")  # sends
            dist.barrier()  # barrier
            if step >= last - (rank == 1):
                break
    """
    path.write_text(dedent(text).lstrip())
    talk = replace(at(path, "send"), function="talk")
    sends, receives = (replace(talk, callers=(at(path, mark),)) for mark in ("sends", "receives"))
    sent = replace(message(path, "send", 1, 1), source=sends)
    barrier = Record("0", 1, BARRIER, at(path, "barrier"), scheduled_ns=15)
    waits = replace(message(path, "send", 1, 2, State.STARTED), source=sends)
    received = replace(message(path, "send", 0, 1), source=receives)
    traces = [trace_of(0, 2, [WORLD], [sent, barrier, waits]), trace_of(1, 2, [WORLD], [received, barrier])]
    sender = Side((0,), waits.call, (RankSource(0, sends),))
    gone = Side((1,), None, (RankSource(1, at(path, "barrier")),), past=True)
    finding = Finding("SC304", Severity.ERROR, "", ranks=(0, 1), sides=(sender, gone))
    [told] = with_partings_of_messages([finding], traces, ran_by(traces))
    assert told.parted is not None
    assert told.parted.source.code.startswith("if step >= last")
    assert told.parted.sides == (((0,), "did not take it"), ((1,), "took it"))


def _unmatched(
    path: Path, traces: list[MemoryTrace], waits: Call, peer: int, code: str = "SC304"
) -> tuple[Finding, ...]:
    sender = Side((0,), waits, (RankSource(0, at(path, "send")),))
    other = Side((peer,), BARRIER, (RankSource(peer, at(path, "barrier")),))
    finding = Finding(code, Severity.ERROR, "", ranks=(0, peer), sides=(sender, other))
    return with_partings_of_messages([finding], traces, ran_by(traces))


ALONG = {
    "a step": ("if rank < last and not (rank == skip and step == 1):", "recv send grads recv", "grads"),
    "the end of a step": ("if rank != skip:", "recv send grads", "grads"),
    "all of them": ("if rank != skip:", "recv", "grads"),
    "not yet": (None, "recv send grads", "recv"),
    "not this one": (None, "recv send", "grads"),
}
"""By what rank 1 left out: the line at which it parted, its calls, and that at which it waits."""


@pytest.mark.parametrize("kind", ALONG)
def test_along_a_pipeline_the_line_of_a_peers_earlier_ends_tells(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    condition, before, now = ALONG[kind]
    text = f"""
        for step in range(3):
            if rank > 0:
                dist.recv(x, rank - 1)  # recv
            {condition or "if rank < last:"}
                dist.send(y, rank + 1)  # send
            if rank < last:
                dist.recv(g, rank + 1)  # grads
    """
    path.write_text(dedent(text).lstrip())

    def made(rank: int, words: str, last: str) -> list[Record]:
        found = []
        for number, word in enumerate([*words.split(), last], 1):
            op, peer = ("send" if word == "send" else "recv"), (rank - 1 if word == "recv" else rank + 1)
            found.append(replace(message(path, op, peer, number), source=at(path, word)))
        return [*found[:-1], replace(found[-1], state=State.STARTED)]

    calls = [made(0, "send grads send", "grads"), made(1, before, now), made(2, "", "recv"), made(3, "", "recv")]
    traces = [trace_of(rank, 4, [WORLD], records) for rank, records in enumerate(calls)]
    stands = [(rank, calls[rank][-1]) for rank in (2, 1)]
    sides = tuple(Side((rank,), one.call, (RankSource(rank, one.source),)) for rank, one in stands)
    ran = ran_by(traces)
    finding = Finding("SC204", Severity.ERROR, "", ranks=(1, 2), sides=sides)
    [told] = with_partings_of_messages(with_partings([finding], ran), traces, ran)
    assert (told.parted and told.parted.source.code) == condition
    if told.parted is not None:
        assert told.parted.sides == (((0,), "took it"), ((1,), "did not take it"))


@pytest.mark.parametrize("code", ["SC301", "SC302", "SC303"])
@pytest.mark.parametrize(("culprits", "told"), [((2,), True), ((), False)])
def test_an_end_that_is_unlike_others_at_its_line_is_told_apart_from_these(
    code: str, culprits: tuple[int, ...], told: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text("n = 6 if rank == 2 else 4\nif rank % 2 == 0:\n    send(n)  # send\nelse:\n    recv(4)  # recv\n")
    made = {0: message(path, "send", 1, 1), 2: message(path, "send", 3, 1, State.STARTED)}
    made |= {1: message(path, "recv", 0, 1), 3: message(path, "recv", 2, 1, State.STARTED)}
    traces = [trace_of(rank, 4, [WORLD], [record]) for rank, record in made.items()]
    sides = tuple(Side((rank,), made[rank].call, (RankSource(rank, made[rank].source),)) for rank in (2, 3))
    folded = tuple(replace(side, ranks=(1, 2, 3)) for side in sides)
    for shown in (sides, folded):
        finding = Finding(code, Severity.ERROR, "", ranks=(2, 3), culprits=culprits, sides=shown)
        [found] = with_partings_of_messages([finding], traces, ran_by(traces))
        assert (found.parted is not None) is told
    if found.parted is not None:
        assert found.parted.source.line == 1
        assert found.parted.sides == (((2,), "found it true"), ((0,), "found it false"))


@pytest.mark.parametrize(("chooses", "told"), [("rank == 2", True), ("rank == 0", False), ("rank > 1", False)])
def test_a_comparison_that_tells_one_of_two_ranks_apart_has_to_do_so_among_all(
    chooses: str, told: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"n = 6 if {chooses} else 4\nif rank % 2 == 0:\n    send(n)  # send\nelse:\n    recv(4)  # recv\n")
    made = {0: message(path, "send", 1, 1), 2: message(path, "send", 3, 1, State.STARTED)}
    made |= {1: message(path, "recv", 0, 1), 3: message(path, "recv", 2, 1, State.STARTED)}
    traces = [trace_of(rank, 4, [WORLD], [record]) for rank, record in made.items()]
    sides = tuple(Side((rank,), made[rank].call, (RankSource(rank, made[rank].source),)) for rank in (2, 3))
    finding = Finding("SC303", Severity.ERROR, "", ranks=(2, 3), culprits=(2,), sides=sides)
    [found] = with_partings_of_messages([finding], traces, ran_by(traces))
    assert (found.parted is not None) is told


@pytest.mark.parametrize(("rounds", "condition"), [(1, "if rank == 1:"), (2, "for turn in turns:")])
def test_the_exit_of_a_round_is_none_for_a_peer_that_made_as_many_messages_there(
    rounds: int, condition: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    text = """
        right = rank + 1
        if rank == 1:
            right = rank + 2
        for turn in turns:
            if turn in left_out:
                continue
            dist.send(x, right)  # send
            dist.barrier()  # barrier
    """
    path.write_text(dedent(text).lstrip())
    barrier = Record("0", 1, BARRIER, at(path, "barrier"), State.STARTED, scheduled_ns=99)
    sent, waits = message(path, "send", 0, 1), message(path, "send", 3, rounds, State.STARTED)
    mine = [message(path, "send", 3, number) for number in range(1, rounds)]
    traces = [trace_of(1, 4, [WORLD], [*mine, waits]), trace_of(3, 4, [WORLD], [sent, barrier])]
    stand = [(1, waits), (3, barrier)]
    sides = tuple(Side((rank,), one.call, (RankSource(rank, one.source),)) for rank, one in stand)
    finding = Finding("SC204", Severity.ERROR, "", ranks=(1, 3), sides=sides)
    ran = ran_by(traces)
    [told] = with_partings_of_messages(with_partings([finding], ran), traces, ran)
    assert told.parted is not None
    assert told.parted.source.code == condition


RING = """
    for step in range(3):
        if rank == 0:
            dist.send(task, 1)  # first
            dist.recv(task, 3)  # last
        else:
            dist.recv(task, rank - 1)  # recv
            if late:
                continue
            dist.send(task, (rank + 1) % 4)  # send
    dist.barrier()  # barrier
"""


@pytest.mark.parametrize("often", [(3, 3), (3, 2)])
def test_a_rank_that_made_fewer_ends_than_all_others_left_out_a_round(often: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(dedent(RING).lstrip())
    waits = Call("recv", "recv", (), TASK, peer=3, tag=0)

    def trace(rank: int, rounds: int) -> MemoryTrace:
        records = []
        for place in range(rounds + (rank == 3)):
            records.append(message(path, "recv", rank - 1, 2 * place + 1))
            if not (rank == 3 and place == 1):
                records.append(message(path, "send", (rank + 1) % 4, 2 * place + 2))
        return trace_of(rank, 4, [WORLD], [*records, Record("0", 1, BARRIER, at(path, "barrier"), State.STARTED)])

    first = [replace(message(path, "recv", 3, number), source=at(path, "last")) for number in (1, 2, 3)]
    first[2] = replace(first[2], state=State.STARTED)
    traces = [trace_of(0, 4, [WORLD], first), trace(1, often[0]), trace(2, often[1]), trace(3, 2)]
    sides = (
        Side((0,), waits, (RankSource(0, at(path, "last")),)),
        Side((3,), BARRIER, (RankSource(3, at(path, "barrier")),)),
    )
    asked = Finding("SC204", Severity.ERROR, "", WORLD, ranks=(0, 3), sides=sides)
    [found] = with_partings_of_messages([asked], traces, ran_by(traces))
    parted = None if found.parted is None else (found.parted.source.code, found.parted.sides)
    assert parted == (("if late:", (((1, 2), "did not take it"), ((3,), "took it"))) if often == (3, 3) else None)


def test_calls_and_groups_that_are_no_messages_cost_no_more_than_their_number(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(dedent(PROGRAM).lstrip())
    waits = Call("send", "send", TASK, peer=3, tag=0)
    sides = (
        Side((0,), waits, (RankSource(0, at(path, "send")),)),
        Side((3,), BARRIER, (RankSource(3, at(path, "barrier")),)),
    )
    finding = Finding("SC304", Severity.ERROR, "", ranks=(0, 3), sides=sides)

    def work(count: int) -> int:
        groups = [WORLD, *(Group(str(number), "", (0, 1, 2, 3)) for number in range(1, count))]
        traces = []
        for one in job(path, passed_by=False):
            shapes = ((Buffer((size,), "float32"),) for size in range(count))
            more = [
                Record("0", 1, Call("all_reduce", "allreduce", shape, shape), at(path, "barrier")) for shape in shapes
            ]
            records = [record for row in range(len(one.slots)) if (record := record_at(one, row)) is not None]
            traces.append(trace_of(one.rank, 4, groups, [*more, *records]))
        return lines_run(lambda: with_partings_of_messages([finding], traces, ran_by(traces)))

    assert work(320) < 16 * work(40)
