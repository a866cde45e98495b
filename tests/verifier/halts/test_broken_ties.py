"""Where a group has no majority, groups of its kind and ranks on their way say which side is wrong, or nobody does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.describe import NO_MAJORITY
from simcoll.verifier.findings.finding import CallPlace, Finding, Severity, Side
from simcoll.verifier.halts.broken_ties import with_broken_ties
from tests.support.effort import lines_run
from tests.support.traces import trace_of

PAIRS = [Group("1", "tp", (0, 1)), Group("2", "tp", (2, 3))]
WORLD = Group("0", "default_pg", (0, 1, 2, 3))


def call(line: int, elements: int = 4, group: Group = WORLD, number: int = 1) -> Record:
    buffers = (Buffer((elements,), "float32", "cpu"),)
    made = Call("all_reduce", "allreduce", buffers, buffers, "sum")
    return Record(group.name, number, made, Source("train.py", line, "step", f"line {line}"), State.COMPLETED)


def traces(*lines: str) -> list[MemoryTrace]:
    """Four ranks of two pairs, each with the calls of its pair: a line for each, doubled for twice as many elements."""
    found = []
    for rank, text in enumerate(lines):
        group = PAIRS[rank // 2]
        calls = [call(ord(one), 8 if one.isupper() else 4, group, number) for number, one in enumerate(text, 1)]
        found.append(trace_of(rank, 4, [group], calls))
    return found


def tie(traces: Sequence[MemoryTrace], number: int, code: str = "SC202") -> Finding:
    sides = (Side((0,), None), Side((1,), None))
    message = f"rank 0 made all_reduce, which rank 1 did not; {NO_MAJORITY}"
    found = Finding(code, Severity.ERROR, message, PAIRS[0], number, (0, 1), (), sides)
    [told] = with_broken_ties([found], traces)
    return told


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (("aabc", "aac", "aabc", "aabc"), (1,)),
        (("aabc", "aac", "aacb", "aacb"), (0,)),
        (("aabc", "aaBc", "aabc", "aabc"), (1,)),
        (("aabc", "aac", "aabc", "aa"), (1,)),
        # They do not agree.
        (("aabc", "aacd", "aabc", "aacd"), ()),
        # They make other calls before.
        (("aabc", "aacd", "xxbc", "xxbc"), ()),
        # They do neither.
        (("aabc", "aacd", "aad", "aad"), ()),
        # They have not come so far.
        (("aabc", "aacd", "aa", "aa"), ()),
        # They may have another task.
        (("abcd", "abd", "abcd", "abcd"), ()),
    ],
)
def test_the_side_that_no_such_group_bears_out_is_wrong(lines: Sequence[str], wrong: tuple[int, ...]) -> None:
    told = tie(traces(*lines), 3)
    assert told.culprits == wrong
    assert (NO_MAJORITY in told.message) is not bool(wrong)
    assert ("in other such groups" in told.message) is bool(wrong)


def test_groups_of_another_kind_say_nothing() -> None:
    made = traces("aabc", "aac", "aabc", "aabc")
    other = [Group("2", "dp", (2, 3))]
    again = [
        trace_of(one.rank, 4, other, [call(ord(c), 4, other[0], n) for n, c in enumerate("aabc", 1)])
        for one in made[2:]
    ]
    assert tie([*made[:2], *again], 3).culprits == ()


@pytest.mark.parametrize(("waits", "wrong"), [("m", (1,)), ("x", ()), ("", ())])
def test_ranks_of_the_group_that_wait_on_the_way_of_one_side_stand_for_it(waits: str, wrong: tuple[int, ...]) -> None:
    """Rank 0 made call b after a message at m; rank 1 went on to c; ranks 2 and 3 have not come to either."""

    def trace(rank: int, text: str) -> MemoryTrace:
        records, number = [], 0
        for place, one in enumerate(text, 1):
            record = call(ord(one), group=WORLD, number=number + (one != "m"))
            number += one != "m"
            if one in "mx":
                record = Record("0", number, record.call, record.source, State.STARTED, p2p_sequence=place)
            records.append(record)
        return trace_of(rank, 4, [WORLD], records)

    sides = (Side((0,), None), Side((1,), None))
    finding = Finding("SC202", Severity.ERROR, NO_MAJORITY, WORLD, 2, (0, 1), (), sides)
    made = [trace(0, "amb"), trace(1, "ac"), trace(2, f"a{waits}"), trace(3, f"a{waits}")]
    [told] = with_broken_ties([finding], made)
    assert told.culprits == wrong


def test_in_a_deadlock_the_others_order_tells() -> None:
    pair, world = PAIRS[0], WORLD
    groups = [[PAIRS[rank // 2], WORLD] for rank in range(4)]
    calls = [[call(ord("a"), group=PAIRS[rank // 2], number=number) for number in (1, 2)] for rank in range(4)]
    first, last = calls[0][-1], call(ord("w"))
    made = [calls[0], [calls[1][0], last], [*calls[2], last], [*calls[3], last]]
    ranks = [trace_of(rank, 4, groups[rank], records) for rank, records in enumerate(made)]
    sides = (
        Side((0,), first.call, place=CallPlace(pair, 2)),
        Side((1, 2, 3), last.call, place=CallPlace(world, 1)),
    )
    finding = Finding("SC204", Severity.ERROR, "none of them can go on", None, None, (0, 1, 2, 3), (), sides)
    [told] = with_broken_ties([finding], ranks)
    assert told.culprits == (1,)
    assert told.message.endswith("; ranks 2-3 made their all_reduce before")


def test_the_calls_of_other_groups_are_read_once_for_all_findings() -> None:
    text = "aabcaabcaabc"

    def work(count: int) -> int:
        pairs = [Group(str(number), "tp", (2 * number, 2 * number + 1)) for number in range(count)]
        made, found = [], []
        for pair in pairs:
            for rank, calls in zip(pair.ranks, (text, text[:-1]), strict=True):
                records = [call(ord(one), 4, pair, number) for number, one in enumerate(calls, 1)]
                made.append(trace_of(rank, 2 * count, [pair], records))
            sides = tuple(Side((rank,), None) for rank in pair.ranks)
            found.append(Finding("SC202", Severity.ERROR, "", pair, len(text), pair.ranks, (), sides))
        return lines_run(lambda: with_broken_ties(found, made))

    assert work(64) < 32 * work(8)
