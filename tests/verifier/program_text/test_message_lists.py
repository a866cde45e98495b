"""The condition by which a list lacks a message is found in the text that builds it; one of several is not named."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from simcoll.core.record import Source
from simcoll.verifier.program_text.message_lists import ListedMessage, Shorter, shorter_by

HEAD = """
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
"""
TO_RIGHT, FROM_LEFT = ListedMessage("send", 3), ListedMessage("recv", 1)
SHAPES = {
    "an append": (
        """
        ops = [P2POp(dist.isend, x, right)]
        if batch.good:
            ops.append(P2POp(dist.irecv, y, left))
        """,
        "ops",
        "if batch.good:",
        True,
    ),
    "a branch that is not taken": (
        """
        ops = [P2POp(dist.isend, x, right)]
        if batch.empty:
            log()
        else:
            ops += [P2POp(dist.irecv, y, left)]
        """,
        "ops",
        "if batch.empty:",
        False,
    ),
    "a message that is taken out": (
        """
        ops = [P2POp(dist.isend, x, right), P2POp(dist.irecv, y, left)]
        if batch.last:
            ops.pop()
        """,
        "ops",
        "if batch.last:",
        False,
    ),
    "a slice": (
        """
        ops = [P2POp(dist.isend, x, right), P2POp(dist.irecv, y, left)]
        if batch.last:
            ops = ops[:1]
        """,
        "ops",
        "if batch.last:",
        False,
    ),
    "a conditional list": (
        """
        send = P2POp(dist.isend, x, right)
        recv = P2POp(dist.irecv, y, left)
        ops = (
            [send]
            if batch.last
            else [send, recv]
        )
        """,
        "ops",
        "if batch.last",
        False,
    ),
    "a starred part": (
        "pass",
        "[P2POp(dist.isend, x, right), *([P2POp(op=dist.irecv, tensor=y, peer=left)] if batch.more else [])]",
        "if batch.more",
        True,
    ),
    "a parameter": (
        """
        ops = []
        if send_next is not None:
            ops.append(P2POp(dist.isend, send_next, right))
        if recv_prev is not None:
            ops.append(P2POp(dist.irecv, recv_prev, left))
        """,
        "ops",
        "if recv_prev is not None:",
        True,
    ),
    "the side that is lacking": (
        """
        ops = []
        if rank > 0 and batch.good:
            ops += [P2POp(dist.isend, x, rank - 1), P2POp(dist.irecv, y, rank - 1)]
        if rank < size - 1:
            ops += [P2POp(dist.isend, x, rank + 1), P2POp(dist.irecv, z, rank + 1)]
        """,
        "ops",
        "if rank > 0 and batch.good:",
        True,
    ),
    "a condition in one whose other message was made": (
        """
        ops = []
        if rank > 0:
            if batch.good:
                ops.append(P2POp(dist.irecv, y, rank - 1))
        if batch.sends:
            ops.append(P2POp(dist.isend, x, rank + 1))
        """,
        "ops",
        "if batch.good:",
        True,
    ),
    "a round that is left out": (
        """
        ops = [P2POp(dist.isend, x, right)]
        for peer in range(size):
            if peer == rank:
                continue
            if peer in batch.dropped:
                continue
            ops.append(P2POp(dist.irecv, y, peer))
        """,
        "ops",
        "if peer in batch.dropped:",
        False,
    ),
    "a comprehension": (
        """
        peers = [p for p in range(size) if p != rank and wanted(p)]
        ops = [P2POp(dist.isend, x, right)] + [P2POp(dist.irecv, y, p) for p in peers]
        """,
        "ops",
        "if p != rank and wanted(p)",
        True,
    ),
    "a comparison with the rank": (
        """
        ops = []
        if rank != 2:
            ops.append(P2POp(dist.irecv, y, left))
        if rank != 1:
            ops.append(P2POp(dist.isend, x, right))
        """,
        "ops",
        "if rank != 2:",
        True,
    ),
}
OPEN = {
    "one that is known to hold": """
        ops = [P2POp(dist.isend, x, right)]
        if rank == 2:
            ops.append(P2POp(dist.irecv, y, left))
    """,
    "none": "ops = made(x, y)",
    "one of a rank in a group": """
        rank = dist.get_rank(group)
        ops = [P2POp(dist.isend, x, right)]
        if rank != 2:
            ops.append(P2POp(dist.irecv, y, left))
    """,
    "more than a few that it may be": """
        ops = [P2POp(dist.isend, x, right)]
        if batch.a and batch.b:
            if batch.c:
                if batch.d:
                    if batch.e:
                        ops.append(P2POp(dist.irecv, y, left))
    """,
}
SEVERAL = {
    "one in the other": (
        """
        ops = [P2POp(dist.isend, x, right)]
        if batch.good:
            if batch.more:
                ops.append(P2POp(dist.irecv, y, left))
        """,
        ["if batch.more:", "if batch.good:"],
    ),
    "exits": (
        """
        def build():
            ops = [P2POp(dist.isend, x, right)]
            if batch.last:
                return ops
            if not batch.more:
                return ops
            return [*ops, P2POp(dist.irecv, y, left)]
        ops = build()
        """,
        ["if not batch.more:", "if batch.last:"],
    ),
    "one after the other": (
        """
        ops = [P2POp(dist.isend, x, right), P2POp(dist.irecv, y, left)]
        if batch.last:
            ops.pop()
        if batch.short:
            ops = ops[:-1]
        """,
        ["if batch.short:", "if batch.last:"],
    ),
    "one that is known to have left it out": (
        """
        ops = [P2POp(dist.isend, x, right)]
        if batch.good:
            if rank != 2:
                ops.append(P2POp(dist.irecv, y, left))
        """,
        ["if rank != 2:"],
    ),
}


def found(tmp_path: Path, text: str, given: str) -> Shorter | None:
    """The conditions by which rank 2 of 4 lacks a receive from rank 1."""
    path = tmp_path / "train.py"
    body = "".join(f"    {line}\n" for line in dedent(text).strip().splitlines())
    path.write_text(
        f"{dedent(HEAD)}def exchange(x, y, send_next=None, recv_prev=None):\n{body}    batch_isend_irecv({given})\n"
    )
    lines = path.read_text().splitlines()
    at = Source(str(path), len(lines), "exchange", lines[-1].strip())
    return shorter_by(at, 2, 4, FROM_LEFT, [TO_RIGHT])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_condition_by_which_a_list_lacks_a_message_is_named(shape: str, tmp_path: Path) -> None:
    text, given, line, true = SHAPES[shape]
    told = found(tmp_path, text, given)
    assert told is not None
    assert line in told.source.code
    assert (told.true, told.others) == (true, ())


@pytest.mark.parametrize("shape", SEVERAL)
def test_all_of_a_few_conditions_that_may_have_left_it_out_are_named(shape: str, tmp_path: Path) -> None:
    text, lines = SEVERAL[shape]
    told = found(tmp_path, text, "ops")
    assert told is not None
    assert [told.source.code, *(one.code for one in told.others)] == lines


@pytest.mark.parametrize("shape", OPEN)
def test_a_list_that_may_lack_it_by_many_or_by_none_tells_nothing(shape: str, tmp_path: Path) -> None:
    assert found(tmp_path, OPEN[shape], "ops") is None


def test_what_a_function_of_the_program_returns_is_followed(tmp_path: Path) -> None:
    text = """
    def ends(x, y):
        made = [P2POp(dist.isend, x, right)]
        if y.numel():
            made.append(P2POp(dist.irecv, y, left))
        return made

    def exchange(x, y):
        for work in dist.batch_isend_irecv(ends(x, y)): work.wait()
    """
    path = tmp_path / "train.py"
    path.write_text(dedent(HEAD) + dedent(text))
    lines = path.read_text().splitlines()
    told = shorter_by(Source(str(path), len(lines), "exchange", lines[-1].strip()), 2, 4, FROM_LEFT, [TO_RIGHT])
    assert told is not None
    assert told.source.code == "if y.numel():"
    assert told.source.function == "ends"
