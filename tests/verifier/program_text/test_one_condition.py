"""One condition that parts ranks is one finding, in whatever rounds, lines and groups; two conditions are two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, Parting, RankSource, Severity, Side
from simcoll.verifier.postmortem import judge
from simcoll.verifier.program_text.one_condition import one_per_condition
from tests.support.effort import lines_run
from tests.support.traces import trace_of

X = (Buffer((4,), "float32", "cpu"),)
OPS = {
    "reduce": Call("all_reduce", "allreduce", X, X, "sum"),
    "send": Call("broadcast", "broadcast", X, X, root=0),
    "double": Call("all_reduce", "allreduce", *((Buffer((4,), "float64", "cpu"),),) * 2, "sum"),
    "meet": Call("barrier", "barrier"),
}
WORLD = Group("0", "default_pg", (0, 1, 2, 3))
PAIRS = Group("1", "", (0, 1)), Group("2", "", (2, 3))


def stack(path: Path, words: str) -> Source:
    """The stack through marked lines, outermost first: ``call:main inner:sync``."""
    lines = path.read_text().splitlines()
    found = Source("", 0, "")
    for word in words.split():
        mark, _, function = word.partition(":")
        line = next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
        outer = (found, *found.callers) if found.file else ()
        found = Source(str(path), line, function or "<module>", lines[line - 1].strip(), outer)
    return found


def play(
    path: Path, text: str, calls: Mapping[int, Sequence[tuple[str, str]]], *, pairs: bool = False
) -> list[Finding]:
    """The findings on ranks that made these calls, each an op and the marks of its stack."""
    path.write_text(dedent(text).lstrip())
    traces: list[MemoryTrace] = []
    for rank, made in calls.items():
        group = PAIRS[rank // 2] if pairs else WORLD
        records = [
            Record(group.name, number, OPS[op], stack(path, words), State.COMPLETED, scheduled_ns=number * 10)
            for number, (op, words) in enumerate(made, 1)
        ]
        traces.append(trace_of(rank, 4, [group], records, mode="record"))
    return list(judge(traces).findings)


ROUNDS = """
    for flag in flags:
        dist.all_reduce(x)  # all
        if flag:
            dist.broadcast(x, 0)  # some
    dist.barrier()  # end
"""


def rounds(flags: str, *, first: str = "reduce all", more: str = "send some") -> list[tuple[str, str]]:
    one, other = (tuple(part.split(" ", 1)) for part in (first, more))
    made = [call for flag in flags for call in ([one, other] if flag == "1" else [one])]
    return [*made, ("meet", "end")]  # type: ignore[list-item]


FLAGS = {
    "in one round": ("000000", "000000", "010000", "000000"),
    "in other rounds": ("100010", "001000", "100010", "100010"),
    "each in its own": ("1000001001", "0100010010", "0010100101", "0001010010"),
}


@pytest.mark.parametrize("kind", FLAGS)
def test_a_condition_in_a_loop_is_one_finding(kind: str, tmp_path: Path) -> None:
    calls = {rank: rounds(flags) for rank, flags in enumerate(FLAGS[kind])}
    [found] = play(tmp_path / "train.py", ROUNDS, calls)
    assert found.code == "SC202"
    assert found.parted is not None
    assert found.parted.source.code == "if flag:"
    if kind != "each in its own":
        assert found.culprits == ((2,) if kind == "in one round" else (1,))
    assert ("the same condition parted ranks" in found.message) == (kind != "in one round")


def test_a_condition_in_several_groups_is_one_finding(tmp_path: Path) -> None:
    text = """
        for step in range(3):
            if flag:
                dist.all_reduce(x, group=pair)  # some
            dist.broadcast(x, group=pair)  # all
        dist.barrier()  # end
    """
    made = [("reduce", "some"), ("send", "all")]
    calls = {rank: [*(made if rank in (0, 3) else made[1:]) * 3, ("meet", "end")] for rank in range(4)}
    [found] = play(tmp_path / "train.py", text, calls, pairs=True)
    assert "once more, in 1 other group)" in found.message
    assert found.parted is not None
    assert found.parted.sides == (((0, 3), "took it"), ((1, 2), "did not take it"))
    assert found.ranks == (0, 1, 2, 3)


TWO = {
    "two conditions": """
        for step in range(3):
            dist.broadcast(x, 0)  # all
            if rank != 1:
                dist.all_reduce(x)  # first
            dist.broadcast(x, 0)  # between
            if rank != 2:
                dist.all_reduce(x)  # second
        dist.barrier()  # end
    """,
    "a condition that callers give": """
        def sync(x, flag):
            if flag:
                dist.all_reduce(x)  # inner

        for step in range(3):
            dist.broadcast(x, 0)  # all
            sync(x, rank != 1)  # first
            dist.broadcast(x, 0)  # between
            sync(x, rank != 2)  # second
        dist.barrier()  # end
    """,
    "a condition of the object": """
        class Sync:
            def sync(self, x):
                if self.flag:
                    dist.all_reduce(x)  # inner

        for step in range(3):
            dist.broadcast(x, 0)  # all
            sync(x)  # first
            dist.broadcast(x, 0)  # between
            sync(x)  # second
        dist.barrier()  # end
    """,
}


@pytest.mark.parametrize("kind", TWO)
def test_conditions_that_are_decided_apart_are_two_findings(kind: str, tmp_path: Path) -> None:
    calls = {}
    shared = kind == "a condition of the object"
    for rank in range(4):
        inner = "" if kind == "two conditions" else " inner:sync"
        first = [] if rank == 1 else [("reduce", f"first{inner}")]
        second = [] if rank == (1 if shared else 2) else [("reduce", f"second{inner}")]
        calls[rank] = [*[("send", "all"), *first, ("send", "between"), *second] * 3, ("meet", "end")]
    found = play(tmp_path / "train.py", TWO[kind], calls)
    assert [one.culprits for one in found] == ([(1,)] if shared else [(1,), (2,)])
    assert all(one.parted is not None for one in found)


def test_two_values_by_one_comparison_are_two_findings(tmp_path: Path) -> None:
    text = """
        first = rank == 1
        y = x.double() if first else x
        dist.all_reduce(y)  # one
        dist.broadcast(x)  # between
        z = x.double() if first else x
        dist.all_reduce(z)  # other
        dist.barrier()  # end
    """
    calls = {}
    for rank in range(4):
        op = "double" if rank == 1 else "reduce"
        calls[rank] = [(op, "one"), ("send", "between"), (op, "other"), ("meet", "end")]
    found = play(tmp_path / "train.py", text, calls)
    assert [one.code for one in found] == ["SC103", "SC103"]
    assert all(one.parted is not None and one.parted.behind for one in found)


def test_a_skip_of_its_own_condition_beside_another_stays(tmp_path: Path) -> None:
    text = """
        for flag in flags:
            dist.all_reduce(x)  # all
            if flag:
                dist.broadcast(x, 0)  # some
        if rank != 3:
            dist.all_reduce(x)  # last
        dist.barrier()  # end
    """
    calls = {rank: rounds("100100" if rank else "001001") for rank in range(4)}
    for rank in range(3):
        calls[rank].insert(-1, ("reduce", "last"))
    found = play(tmp_path / "train.py", text, calls)
    assert [one.parted.source.code for one in found if one.parted] == ["if flag:", "if rank != 3:"]
    assert len(found) == 2


def _unmatched(path: Path, rank: int, peer: int) -> Finding:
    waits = Side((rank,), Call("recv", "recv", (), X, peer=peer), (RankSource(rank, Source(str(path), rank, "")),))
    gone = Side((peer,), None, (), "ended")
    message = f"rank {rank} waits for a message from rank {peer} that is never sent"
    return Finding("SC304", Severity.ERROR, message, ranks=(rank, peer), sides=(waits, gone))


def test_messages_that_wait_for_one_rank_are_one_finding(tmp_path: Path) -> None:
    found = [_unmatched(tmp_path, rank, peer) for rank, peer in ((1, 2), (3, 2), (6, 5))]
    told = one_per_condition(found, [])
    assert [one.message.partition(" (")[2] for one in told] == ["rank 3 waits for rank 2 as well)", ""]
    assert told[0].ranks == (1, 2, 3)


def test_the_work_for_a_condition_that_parts_many_groups_grows_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    others = "".join(f"def other{number}():\n    pass\n" for number in range(50))
    path.write_text(f"{others}for batch in batches:\n    if odd:\n        reduce(batch)\n    meet(batch)\n")
    code = path.read_text().splitlines()

    def at(line: int) -> Source:
        return Source(str(path), line, "<module>", code[line - 1].strip())

    def parted(number: int) -> Finding:
        ranks = 2 * number, 2 * number + 1
        sides = (
            Side(ranks[:1], OPS["reduce"], (RankSource(ranks[0], at(103)),)),
            Side(ranks[1:], None, (), stood=at(104)),
        )
        parting = Parting(at(102), ((ranks[:1], "took it"), (ranks[1:], "did not take it")))
        group = Group(str(number), "pair", ranks)
        return Finding("SC202", Severity.ERROR, "", group, sequence=3, ranks=ranks, sides=sides, parted=parting)

    found = [parted(number) for number in range(320)]
    assert len(one_per_condition(found, [])) == 1
    few, many = (lines_run(partial(one_per_condition, found[:count], [])) for count in (40, 320))
    assert many < 10 * few
