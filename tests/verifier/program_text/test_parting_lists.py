"""Which rank's list of messages is the odd one is told by those of others, and by its own where nothing else tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, RankSource, Severity, Side
from simcoll.verifier.program_text.parting import ran_by, with_partings
from simcoll.verifier.program_text.parting_messages import with_partings_of_messages
from tests.support.traces import trace_of

DATA = (Buffer((2,), "float32"),)
WORLD = Group("0", "default_pg", (0, 1, 2, 3, 4))
PROGRAM = """
    for micro in range(rounds):
        {exit}
        ops = []
        if receives(micro):
            ops.append(P2POp(dist.irecv, x, rank - 1))
        if micro < rounds - 1:
            ops.append(P2POp(dist.isend, y, rank + 1))
        works = dist.batch_isend_irecv(ops)  # batch
    dist.barrier()  # barrier
"""
SKIP = "if micro == skip:\n            continue"


def at(path: Path, mark: str) -> Source:
    lines = path.read_text().splitlines()
    number = next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
    return Source(str(path), number, "<module>", lines[number - 1].strip())


def trace(path: Path, rank: int, lists: Sequence[str], *, waits: bool = False) -> MemoryTrace:
    """A rank's trace by its lists, of ``r`` (from the rank before) and ``s`` (to the next), then at the barrier."""
    records: list[Record] = []
    for ends in lists:
        for end in ends:
            op, peer = ("recv", rank - 1) if end == "r" else ("send", rank + 1)
            call = Call(op, op, () if op == "recv" else DATA, DATA if op == "recv" else (), peer=peer, tag=0)
            number = len(records) + 1
            records.append(
                Record("0", 0, call, at(path, "batch"), State.COMPLETED, scheduled_ns=number * 10, p2p_sequence=number)
            )
    if waits:
        records[-1] = replace(records[-1], state=State.STARTED)
    else:
        records.append(Record("0", 1, Call("barrier", "barrier"), at(path, "barrier"), State.STARTED, scheduled_ns=999))
    return trace_of(rank, 5, [WORLD], records)


def told(path: Path, traces: Sequence[MemoryTrace], code: str = "SC304") -> Finding:
    """What is said of rank 1, which waits for rank 2 to receive."""
    waits = Call("send", "send", DATA, peer=2, tag=0)
    sender = Side((1,), waits, (RankSource(1, at(path, "batch")),))
    other = Side((2,), Call("barrier", "barrier"), (RankSource(2, at(path, "barrier")),))
    finding = Finding(code, Severity.ERROR, "", ranks=(1, 2), sides=(sender, other))
    ran = ran_by(traces)
    [found] = with_partings_of_messages(with_partings([finding], ran), traces, ran)
    return found


@pytest.mark.parametrize(
    ("others", "culprits"),
    [(("rs", "rs"), (2,)), (("rs", "s"), ()), (("s", "s"), ())],
)
def test_a_list_that_lacks_what_others_have_is_the_odd_one(
    others: Sequence[str], culprits: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(dedent(PROGRAM.format(exit="pass")).lstrip())
    traces = [trace(path, 1, ["rs"], waits=True), trace(path, 2, ["s"])]
    traces += [trace(path, rank, [ends]) for rank, ends in zip((3, 4), others, strict=True)]
    found = told(path, traces)
    assert found.culprits == culprits
    assert found.parted is not None
    assert found.parted.source.code == ("if receives(micro):" if "rs" in others else "for micro in range(rounds):")


@pytest.mark.parametrize(("leave", "line"), [(SKIP, "if micro == skip:"), ("pass", "if receives(micro):")])
def test_a_schedule_by_which_lists_vary_comes_after_an_exit(leave: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(dedent(PROGRAM.format(exit=leave)).lstrip())
    found = told(path, [trace(path, 1, ["rs", "rs"], waits=True), trace(path, 2, ["rs", "s"])])
    assert found.parted is not None
    assert found.parted.source.code == line
    assert found.culprits == ()


@pytest.mark.parametrize("asks", ["if ops:", "if len(ops) > 0:", "if rounds:"])
def test_what_left_a_list_empty_is_named_and_not_the_question_for_it(asks: str, tmp_path: Path) -> None:
    """Rank 2 has no messages, although rank 1 waits for it to receive and rank 3 for it to send."""
    path = tmp_path / "train.py"
    text = f"""
        ops = []
        if receives:
            ops.append(P2POp(dist.irecv, x, rank - 1))
        if sends:
            ops.append(P2POp(dist.isend, y, rank + 1))
        {asks}
            dist.batch_isend_irecv(ops)  # batch
        dist.barrier()  # barrier
    """
    path.write_text(dedent(text).lstrip())
    traces = [trace(path, 1, ["s"], waits=True), trace(path, 2, []), trace(path, 3, ["r"], waits=True)]
    found = told(path, traces, "SC204")
    assert found.parted is not None
    lines = [one.code for one in (found.parted.source, *found.parted.others)]
    assert lines == ([asks] if "ops" not in asks else ["if receives:", "if sends:"])


def test_all_who_wait_for_a_rank_with_an_empty_list_name_one_condition_first(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = """
        ops = []
        if sends:
            ops.append(P2POp(dist.isend, y, rank + 1))
        if receives:
            ops.append(P2POp(dist.irecv, x, rank - 1))
        if ops:
            dist.batch_isend_irecv(ops)  # batch
        dist.barrier()  # barrier
    """
    path.write_text(dedent(text).lstrip())
    traces = [trace(path, 1, ["s"], waits=True), trace(path, 2, []), trace(path, 3, ["r"], waits=True)]
    found = told(path, traces, "SC204")
    assert found.parted is not None
    assert [one.code for one in (found.parted.source, *found.parted.others)] == ["if sends:", "if receives:"]
