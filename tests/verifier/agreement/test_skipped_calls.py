"""Whole jobs in which a rank lacks a call, makes one too many, or in another order: one finding each, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import SLOT, LaunchOutcome, MemoryTrace, RankExit
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.columns import columns_of
from simcoll.verifier.agreement.mismatches import check_agreement
from simcoll.verifier.findings.finding import Finding, Severity
from simcoll.verifier.postmortem import judge
from tests.support.effort import lines_run
from tests.support.seeds import drawn
from tests.support.traces import trace_of

SECOND = 10**9
STEP = "abcd"


def call(letter: str) -> Call:
    """Letters are calls that nobody can take for one another; a capital has the same signature as every other."""
    if letter == "z":
        return Call("barrier", "barrier")
    if letter == "r":
        tensors = (Buffer((4,), "float32"),)
        return Call("broadcast", "broadcast", tensors, tensors, root=0)
    size = 8 if letter.isupper() else ord(letter)
    tensors = (Buffer((size,), "float64" if letter == "!" else "float32"),)
    return Call("all_reduce", "allreduce", tensors, tensors, reduce_op="max" if letter == "?" else "sum")


def source(letter: str, lines: Mapping[str, int]) -> Source:
    line = lines.get(letter, ord(letter))
    return Source("train.py", line, f"line_{line}", f"f({letter})")


def traces_of(
    programs: Sequence[str],
    *,
    mode: str = "record",
    lines: Mapping[str, int] | None = None,
    first: Sequence[int] = (),
    world: int | None = None,
    events: Sequence[Event] = (),
) -> list[MemoryTrace]:
    """One trace a program: each letter a call, from the line of its letter; ``first`` is its first sequence number."""
    size = world or len(programs)
    group = Group("0", "default_pg", tuple(range(size)))
    traces = []
    for rank, program in enumerate(programs):
        begin = first[rank] if first else 1
        records = [
            Record("0", n, call(letter), source(letter, lines or {}), State.COMPLETED, scheduled_ns=n * SECOND)
            for n, letter in enumerate(program, begin)
        ]
        made = trace_of(rank, size, [group], records, mode=mode, events=events)
        dropped = {0: begin - 1} if begin > 1 else {}
        traces.append(
            MemoryTrace(
                rank, size, mode, made.groups, made.signatures, made.sources, made.events, made.slots, dropped=dropped
            )
        )
    return traces


def found(traces: Sequence[MemoryTrace]) -> list[Finding]:
    return [mismatch.finding for mismatch in check_agreement(columns_of(traces), traces).mismatches]


def said(traces: Sequence[MemoryTrace]) -> list[tuple[str, int | None, tuple[int, ...]]]:
    return [(one.code, one.sequence, one.culprits) for one in found(traces)]


def with_odd(program: str, odd: str, *, ranks: int = 4, rank: int = 2) -> list[str]:
    return [odd if index == rank else program for index in range(ranks)]


# One call skipped, one too many.


def test_a_skipped_call_is_one_finding_with_its_place_and_lines() -> None:
    program = STEP * 100
    (finding,) = found(traces_of(with_odd(program, program[:182] + program[183:])))
    assert (finding.code, finding.severity, finding.sequence) == ("SC202", Severity.ERROR, 183)
    assert (finding.culprits, finding.ranks) == ((2,), (0, 1, 2, 3))
    assert finding.message == "rank 2 skipped the all_reduce that ranks 0-1 and 3 made as collective 183"
    made, lacked = finding.sides
    assert (made.ranks, [one.source.line for one in made.sources]) == ((0, 1, 3), [ord(program[182])])
    assert (lacked.ranks, lacked.call, lacked.sources) == ((2,), None, ())
    assert "after all_reduce #182" in lacked.note
    assert "before all_reduce #183" in lacked.note
    assert [one.sequence for one in finding.before] == [180, 181, 182]


def test_an_extra_call_is_named_with_its_own_line_and_number() -> None:
    program = STEP * 20
    (finding,) = found(traces_of(with_odd(program, program[:30] + "e" + program[30:])))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 31, (2,))
    assert "rank 2 made all_reduce, as its collective 31, which ranks 0-1 and 3 did not make" in finding.message
    (made,) = [side for side in finding.sides if side.ranks == (2,)]
    assert [one.source.line for one in made.sources] == [ord("e")]


def test_a_skip_and_a_later_mismatch_are_two_findings() -> None:
    program = STEP * 100
    odd = program[:182] + program[183:298] + "!" + program[299:]
    assert said(traces_of(with_odd(program, odd), lines={"!": ord(program[298])})) == [
        ("SC202", 183, (2,)),
        ("SC103", 299, (2,)),
    ]


def test_a_whole_step_skipped_is_one_finding() -> None:
    program = STEP * 10 + "efghi" + STEP * 10
    (finding,) = found(traces_of(with_odd(program, program[:40] + program[45:])))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 41, (2,))
    assert "skipped 5 calls, the first all_reduce" in finding.message
    assert "collectives 41 to 45" in finding.message


def test_the_same_skip_in_every_step_is_one_finding_with_a_count() -> None:
    (finding,) = found(traces_of(with_odd(STEP * 100, "abd" * 100)))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 3, (2,))
    assert "99 times more" in finding.message


def test_two_ranks_have_no_majority() -> None:
    program = STEP * 20
    (finding,) = found(traces_of([program, program[:30] + program[31:]]))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 31, ())
    assert "rank 0 made all_reduce, as its collective 31, which rank 1 did not" in finding.message
    assert "no majority" in finding.message


def test_each_rank_with_its_own_skip() -> None:
    program = STEP * 50
    programs = [program if rank == 0 else program[: 40 * rank] + program[40 * rank + 1 :] for rank in range(4)]
    assert said(traces_of(programs)) == [("SC202", 41, (1,)), ("SC202", 81, (2,)), ("SC202", 121, (3,))]


def test_the_reference_is_what_most_ranks_did_even_if_no_two_did_all_alike() -> None:
    """Every rank departs once, so that no sequence is the majority's."""
    program = STEP * 50
    programs = [program[: 30 + 40 * rank] + program[31 + 40 * rank :] for rank in range(4)]
    assert said(traces_of(programs)) == [("SC202", 31 + 40 * rank, (rank,)) for rank in range(4)]


def test_two_of_five_ranks_skip_the_same_call() -> None:
    program = STEP * 20
    odd = program[:30] + program[31:]
    (finding,) = found(traces_of([program, odd, program, odd, program]))
    assert (finding.sequence, finding.culprits) == (31, (1, 3))


def test_a_skip_among_calls_that_look_alike_says_so() -> None:
    (finding,) = found(traces_of(with_odd("a" * 40 + "z", "a" * 39 + "z")))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 1, (2,))
    assert "one of collectives 1 to 40; they look alike, so that it cannot be told which" in finding.message
    (lacked,) = [side for side in finding.sides if side.ranks == (2,)]
    assert lacked.stood.line == ord("z")
    assert "after all_reduce #39" in lacked.note
    assert "before barrier #40" in lacked.note


def test_skipped_calls_that_may_begin_earlier_are_told_by_the_first_one_that_differs() -> None:
    """A rank makes every third call of one line where the others make every second."""
    (finding,) = found(traces_of(with_odd("rzzrzzrzz", "rzzzrzzz")))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 3, (2,))
    assert "skipped 2 calls, the first broadcast" in finding.message
    (made,) = [side for side in finding.sides if side.ranks != (2,)]
    (lacked,) = [side for side in finding.sides if side.ranks == (2,)]
    assert (made.sources[0].source.line, lacked.stood.line) == (ord("r"), ord("z"))


def test_the_last_calls_of_ranks_that_hang() -> None:
    """Rank 2 skipped a call; what it makes at the end meets nobody."""
    program = STEP * 20
    programs = with_odd(program[:-2], program[:30] + program[31:-1])
    assert said(traces_of(programs)) == [("SC202", 31, (2,))]


def test_a_rank_that_is_behind_skipped_nothing() -> None:
    program = STEP * 20
    assert found(traces_of([program, program[:-1], program[:40], program[:3]])) == []


def test_a_rank_that_is_behind_is_no_witness() -> None:
    """Rank 3 had not come to the skipped call; two of three are the majority."""
    program = STEP * 20
    (finding,) = found(traces_of([program, program, program[:60] + program[61:], program[:40]]))
    assert (finding.sequence, finding.culprits, finding.ranks) == (61, (2,), (0, 1, 2))


def test_ranks_without_a_trace_do_not_vote() -> None:
    program = STEP * 20
    programs = [program, program[:30] + program[31:], program]
    assert said(traces_of(programs, world=6)) == [("SC202", 31, (1,))]


def test_wrapped_rings_are_aligned_from_where_all_still_hold() -> None:
    program = STEP * 50
    odd = program[:150] + program[151:]
    traces = traces_of([program[40:], program[100:], odd[60:], program[90:]], first=[41, 101, 61, 91])
    assert said(traces) == [("SC202", 151, (2,))]


def test_a_skip_that_the_ring_dropped() -> None:
    program = "".join(STEP + "efgh"[k % 4] for k in range(40))
    odd = program[:20] + program[21:]
    traces = traces_of([program[60:], program[60:], odd[60:], program[60:]], first=[61] * 4)
    (finding,) = found(traces)
    assert (finding.code, finding.culprits) == ("SC202", (2,))


def test_holes_in_a_record_are_no_skips() -> None:
    program = STEP * 20
    traces = traces_of(with_odd(program, program[:50] + program[51:]))
    holed = traces[1]
    slots = np.delete(holed.slots, [10, 11, 30])
    traces[1] = MemoryTrace(
        1, 4, "record", holed.groups, holed.signatures, holed.sources, holed.events, slots, dropped={}
    )
    assert said(traces) == [("SC202", 51, (2,))]


def test_lives_of_a_group_are_aligned_one_by_one() -> None:
    program = STEP * 5
    traces = []
    for rank, made in enumerate(traces_of(with_odd(program, program[:10] + program[11:]))):
        whole = traces_of([program] * 4)[rank]
        slots = np.concatenate([whole.slots, made.slots])
        traces.append(
            MemoryTrace(rank, 4, "record", made.groups, made.signatures, made.sources, made.events, slots, dropped={})
        )
    assert [code for code, _, _ in said(traces)] == ["SC202"]


# Another order.


@pytest.mark.parametrize("odd", ["abcdabdcabcd", "abcdbacdabcd", "abcddcbaabcd", "abcdacbdabcd", "abcdbcdaabcd"])
def test_calls_in_another_order_are_one_finding(odd: str) -> None:
    (finding,) = found(traces_of(with_odd("abcdabcdabcd" + STEP * 3, odd + STEP * 3)))
    begin = next(n for n, pair in enumerate(zip("abcdabcdabcd", odd, strict=True), 1) if len(set(pair)) > 1)
    assert (finding.code, finding.severity) == ("SC203", Severity.ERROR)
    assert (finding.sequence, finding.culprits) == (begin, (2,))


def test_calls_swapped_at_the_very_end_are_neither_extra_nor_lacking() -> None:
    assert [one.code for one in found(traces_of(["abcd", "abcd", "abdc", "abcd"]))] == ["SC203"]


def test_swapped_calls_in_words() -> None:
    (finding,) = found(traces_of(with_odd("abrzab", "abzrab")))
    assert finding.message == (
        "rank 2 makes barrier before broadcast, ranks 0-1 and 3 make broadcast before barrier (collectives 3 to 4)"
    )
    usual, odd = finding.sides
    assert [one.source.line for one in usual.sources] == [ord("r"), ord("z")]
    assert [one.source.line for one in odd.sources] == [ord("z"), ord("r")]


def test_the_same_order_swapped_in_every_step() -> None:
    (finding,) = found(traces_of(with_odd(STEP * 30, "acbd" * 30)))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC203", 2, (2,))
    assert "29 times more" in finding.message


# One call replaced.


@pytest.mark.parametrize("place", [1, 5, 20])
def test_a_difference_at_one_place_stays_what_it_is(place: int) -> None:
    program = STEP * 5
    odd = program[: place - 1] + "?" + program[place:]
    ((code, sequence, culprits),) = said(traces_of(with_odd(program, odd), lines={"?": ord(program[place - 1])}))
    assert (code, sequence, culprits) == ("SC104", place, (2,))


def test_another_branch_is_one_finding() -> None:
    program = STEP * 20
    odd = program[:40] + "zrz" + program[44:]
    assert said(traces_of(with_odd(program, odd))) == [("SC101", 41, (2,))]


def test_another_program_from_there_on_is_one_finding() -> None:
    program = STEP * 20
    assert said(traces_of(with_odd(program, program[:40] + "zrzzrrzrrz"))) == [("SC101", 41, (2,))]


def test_tolerated_views_are_neither_skipped_nor_extra() -> None:
    """A rank that flattens its tensors gives a warning; a call that it skips is still found."""
    program = STEP * 20
    traces = traces_of(with_odd(program, program[:50] + program[51:]))
    odd = traces[2]
    flat = [
        Call("all_reduce", "allreduce", (one,), (one,), reduce_op="sum")
        for one in (Buffer((2, call_.inputs[0].shape[0] // 2), "float32") for call_ in odd.signatures)
        if one.elements
    ]
    even = [
        new if new.inputs[0].elements == old.inputs[0].elements else old
        for new, old in zip(flat, odd.signatures, strict=True)
    ]
    traces[2] = MemoryTrace(2, 4, "record", odd.groups, even, odd.sources, odd.events, odd.slots)
    errors = [one for one in found(traces) if one.severity is Severity.ERROR]
    assert [(one.code, one.sequence, one.culprits) for one in errors] == [("SC202", 51, (2,))]
    assert {one.code for one in found(traces)} == {"SC202", "SC109"}


def test_in_detail_mode_positions_are_not_shifted() -> None:
    program = STEP * 2
    traces = traces_of(with_odd(program, program[:4] + "?" + program[5:]), mode="detail", lines={"?": ord("a")})
    assert said(traces) == [("SC104", 5, (2,))]


# Calls that look alike: only their lines tell.


@pytest.mark.parametrize("mode", ["record", "detail"])
@pytest.mark.parametrize("lines", ["ABC", "AB", "AABC"])
def test_a_skip_that_only_the_lines_show(lines: str, mode: str) -> None:
    program = lines * 30
    place = 10 * len(lines) + len(lines) - 1
    (finding,) = found(traces_of(with_odd(program, program[:place] + program[place + 1 :]), mode=mode))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", place + 1, (2,))


def test_an_extra_call_that_only_the_lines_show() -> None:
    program = "ABC" * 30
    (finding,) = found(traces_of(with_odd(program, program[:32] + "X" + program[32:])))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 33, (2,))


def test_lines_tell_the_place_when_the_end_gives_the_skip_away() -> None:
    program = "ABC" * 30
    (finding,) = found(traces_of(with_odd(program, program[:32] + program[33:] + "z")))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 33, (2,))


def test_an_exchange_of_calls_that_look_alike_is_a_warning() -> None:
    (finding,) = found(traces_of(with_odd("ABCD" * 10, "ABCD" * 4 + "ACBD" + "ABCD" * 5)))
    assert (finding.code, finding.severity, finding.sequence) == ("SC203", Severity.WARNING, 18)
    assert finding.culprits == (2,)
    assert "the calls look alike" in finding.message


@pytest.mark.parametrize("mode", ["record", "detail"])
@pytest.mark.parametrize(("program", "odd"), [("AB", "BA"), ("AB" * 5, "BA" * 5), ("CAB" * 5, "CBA" * 5)])
def test_an_exchange_in_every_step_is_one_warning(program: str, odd: str, mode: str) -> None:
    (finding,) = found(traces_of(with_odd(program, odd), mode=mode))
    assert (finding.code, finding.severity, finding.culprits) == ("SC203", Severity.WARNING, (2,))


HELPER = "utils.py", 3, "mean", "dist.all_reduce(x)"


def through_helper(programs: Sequence[str], *, depth: bool = False) -> list[MemoryTrace]:
    """Traces of ranks whose calls all come from one line of a helper, called from the line of each letter.

    With ``depth`` the letters are depths of a recursion instead.
    """

    def callers(letter: str) -> tuple[Source, ...]:
        line = Source("train.py", 7, "visit") if depth else Source("train.py", ord(letter), "step")
        return (line,) * (ord(letter) - ord("A") + 1) if depth else (line, Source("train.py", 1, "<module>"))

    group = Group("0", "", tuple(range(len(programs))))
    made = {letter: Source(*HELPER, callers(letter)) for program in programs for letter in program}
    return [
        trace_of(
            rank,
            len(programs),
            [group],
            [
                Record("0", n, call("A"), made[letter], State.COMPLETED, scheduled_ns=n * SECOND)
                for n, letter in enumerate(program, 1)
            ],
            mode="record",
        )
        for rank, program in enumerate(programs)
    ]


@pytest.mark.parametrize(("program", "odd"), [("AB", "BA"), ("ABCD" * 9, "ABCD" * 4 + "ACBD" + "ABCD" * 4)])
def test_an_exchange_behind_a_helper_is_a_warning_that_names_the_callers(program: str, odd: str) -> None:
    (finding,) = found(through_helper(with_odd(program, odd)))
    assert (finding.code, finding.severity, finding.culprits) == ("SC203", Severity.WARNING, (2,))
    usual, other = (ord(letter) for letter in next((a, b) for a, b in zip(program, odd, strict=True) if a != b))
    assert f"rank 2 makes the all_reduce at train.py:{other} in step before the all_reduce at train.py:{usual}" in (
        finding.message
    )
    lines = [[stated.source.callers[0].line for stated in side.sources] for side in finding.sides]
    assert lines == [[usual, other], [other, usual]]


def test_a_skip_that_only_the_callers_show() -> None:
    program = "ABC" * 30
    (finding,) = found(through_helper(with_odd(program, program[:32] + program[33:])))
    assert (finding.code, finding.sequence, finding.culprits) == ("SC202", 33, (2,))


def test_an_exchange_of_functions_that_call_one_helper_is_found_where_they_are_called_from_other_lines() -> None:
    """Of a rank that calls the two functions in another branch, the outer frames differ as well."""
    group = Group("0", "", (0, 1, 2))
    traces = []
    for rank in range(3):
        lines = [("second", 20), ("first", 21)] if rank == 2 else [("first", 30), ("second", 31)]
        records = [
            Record("0", n, call("A"), Source(*HELPER, (Source("train.py", 5, name), Source("train.py", line, "step"))))
            for n, (name, line) in enumerate(lines, 1)
        ]
        traces.append(trace_of(rank, 3, [group], records, mode="record"))
    (finding,) = found(traces)
    assert (finding.code, finding.severity, finding.culprits) == ("SC203", Severity.WARNING, (2,))
    assert "rank 2 makes the all_reduce in second before the all_reduce in first" in finding.message


@pytest.mark.parametrize("depth", [False, True])
@pytest.mark.parametrize(
    "programs",
    [
        pytest.param(["XAB" * 9, "YAB" * 9, "YAB" * 9, "YAB" * 9], id="rank 0 logs elsewhere"),
        pytest.param(["AB" * 9, "BA" * 9, "AB" * 9, "BA" * 9], id="roles alternate"),
        pytest.param(["ABC" * 9, "ABC" * 9, "BCA" * 9, "ABC" * 9], id="three in a circle"),
    ],
)
def test_correct_programs_with_a_helper_are_silent(programs: list[str], depth: bool) -> None:
    assert found(through_helper(programs, depth=depth)) == []


def test_trees_of_other_depths_on_a_rank_are_silent() -> None:
    """A recursion that reaches the same depths in another order, as that of a rank with another tree."""
    assert found(through_helper(with_odd("ABCB" * 3, "ABBC" * 3), depth=True)) == []


SILENT = {
    "every rank another line": ["AAAA", "BBBB", "CCCC", "DDDD"],
    "rank 0 logs elsewhere": ["ABXC" * 9, "ABYC" * 9, "ABYC" * 9, "ABYC" * 9],
    "roles alternate on two ranks": ["AB" * 9, "BA" * 9],
    "roles alternate on two ranks, a common call between": ["ACBC" * 9, "BCAC" * 9],
    "roles alternate by parity": ["AB" * 9, "BA" * 9, "AB" * 9, "BA" * 9],
    "roles rotate": ["ABBB" * 9, "BABB" * 9, "BBAB" * 9, "BBBA" * 9],
    "three lines in a circle": ["ABC" * 9, "ABC" * 9, "BCA" * 9, "ABC" * 9],
    "the batches run out early": ["AAAAAB" * 9, "AAAAAB" * 9, "AAABBB" * 9, "AAAAAB" * 9],
    "the batches ran out early, then the job was killed": ["AAAAABBBB", "AAAAABBBB", "AAAABBBB", "AAAAABBBB"],
    "no batches at all, then the job was killed": ["AAAABB", "AAAABB", "BB", "AAAABB"],
    "another order of phases, then the job was killed": ["AB" * 9, "AB" * 9, "BA" * 8 + "B", "AB" * 9],
    "one loop only, one call behind": ["AAAA", "AAAA", "AAA", "AAAA"],
    "calls that move nothing": ["abz", "abz", "abz"],
}


@pytest.mark.parametrize("programs", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("mode", ["record", "detail"])
def test_correct_programs_are_silent(programs: list[str], mode: str) -> None:
    assert found(traces_of(programs, mode=mode)) == []


def test_barriers_from_exchanged_lines_are_silent() -> None:
    """A barrier moves nothing that could be taken for something else."""
    group = Group("0", "", (0, 1, 2, 3))
    traces = []
    for rank in range(4):
        lines = [2, 1] if rank == 2 else [1, 2]
        records = [
            Record("0", n, call("z"), Source("train.py", line, f"f{line}"), scheduled_ns=n)
            for n, line in enumerate(lines, 1)
        ]
        traces.append(trace_of(rank, 4, [group], records, mode="record"))
    assert found(traces) == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sequences_of_equal_calls_are_silent_from_any_lines(data: st.DataObject) -> None:
    """Ranks that agree call for call are silent, however their lines differ, unless two lines are plainly exchanged."""
    length = data.draw(st.integers(1, 30))
    program = data.draw(st.text("abcA", min_size=length, max_size=length))
    traces = []
    for trace in traces_of([program] * 3):
        slots = trace.slots.copy()
        slots["source"] = data.draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
        sources = [Source("train.py", line, "main") for line in range(3)]
        behind = data.draw(st.integers(0, length - 1)) if data.draw(st.booleans()) else 0
        cut = slots[: length - behind]
        traces.append(MemoryTrace(trace.rank, 3, "record", trace.groups, trace.signatures, sources, (), cut))
    assert [one for one in found(traces) if one.severity is Severity.ERROR] == []


LETTERS = "abcdefghijklmnop"


@settings(max_examples=drawn(150, 3), deadline=None)
@given(st.data())
def test_random_edits_are_named_and_nothing_else(data: st.DataObject) -> None:
    """Far enough apart, each skip, extra call, swap and replacement is one finding with its place and its rank."""
    steps = data.draw(st.integers(4, 12))
    period = data.draw(st.permutations(LETTERS))
    reference = list("".join(period) * steps)
    ranks = data.draw(st.integers(3, 6))
    programs = [list(reference) for _ in range(ranks)]
    expected = []
    places = range(6, len(reference) - 12, 12)
    for place in sorted(data.draw(st.lists(st.sampled_from(places), unique=True, max_size=5)), reverse=True):
        rank = data.draw(st.integers(0, ranks - 1))
        kind = data.draw(st.sampled_from(["skip", "extra", "swap", "replace"]))
        program = programs[rank]
        if kind == "skip":
            del program[place]
        elif kind == "extra":
            program.insert(place, "q")
        elif kind == "swap":
            program[place], program[place + 1] = program[place + 1], program[place]
        else:
            program[place] = "z"
        expected.append((kind, place, rank))
    names = {"skip": "SC202", "extra": "SC202", "swap": "SC203", "replace": "SC101"}
    got = found(traces_of(["".join(program) for program in programs]))
    assert {(one.code, *one.culprits) for one in got} == {(names[kind], rank) for kind, _, rank in expected}
    repeated = sum("once more" in one.message for one in got) + 9 * sum("times more" in one.message for one in got)
    assert len(got) <= len(expected) <= len(got) + repeated
    places_found = {(one.sequence, one.culprits[0]) for one in got if "skipped" in one.message or one.code == "SC203"}
    named = {(place + 1, rank) for kind, place, rank in expected if kind in ("skip", "swap")}
    assert places_found <= named
    assert repeated or places_found == named


# What follows from it.


def test_what_the_ranks_report_of_a_skip_is_no_finding_of_its_own() -> None:
    """The last call meets nobody: ranks wait for one that is elsewhere, lose their connections, abort."""
    program = "ABC" * 10
    data: dict[str, object] = {"group": "0", "sequence": 30, "missing": [2], "waited_ms": 2000}
    lost: dict[str, object] = {"type": "RuntimeError", "message": "Connection closed by peer", "source": None}
    waiting = [Event("missing", 40 * SECOND, data), Event("exception", 41 * SECOND, lost)]
    traces = traces_of(with_odd(program, program[:11] + program[12:]), mode="detail", events=waiting)
    ended = traces_of(with_odd(program, program[:11] + program[12:]), events=[Event("exit", 35 * SECOND, {})])
    traces[2] = ended[2]
    exits = {rank: RankExit(0 if rank == 2 else 1, 42 * SECOND) for rank in range(4)}
    report = judge(traces, LaunchOutcome(exits))
    assert [(one.code, one.sequence, one.culprits) for one in report.findings] == [("SC202", 12, (2,))]


def test_an_abort_after_a_skip_is_its_consequence() -> None:
    program = STEP * 20
    traces = traces_of(with_odd(program, program[:30] + program[31:]))
    exits = {rank: RankExit(-6, 79 * SECOND) for rank in range(4)}
    assert [one.code for one in judge(traces, LaunchOutcome(exits)).findings] == ["SC202"]


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [None, 183], ids=["clean", "one skip"])
def test_work_grows_with_ranks_and_not_with_their_calls(lacking: int | None) -> None:
    judge_equal_ranks(8, 500, lacking)
    few, more, thousands = (
        lines_run(partial(judge_equal_ranks, *size, lacking)) for size in ((256, 1000), (256, 2000), (1024, 2000))
    )
    assert more < (1.01 if lacking is None else 1.2) * few
    assert thousands < 4.4 * more


def judge_equal_ranks(ranks: int, calls: int, lacking: int | None) -> None:
    """Judge ranks that make the same calls; one of them leaves one out."""
    group = Group("0", "", tuple(range(ranks)))
    slots = np.zeros(calls, SLOT)
    slots["sequence"] = np.arange(1, calls + 1)
    slots["signature"] = slots["source"] = np.arange(calls) % 20
    letters = LETTERS + "stuv"
    calls_, sources = tuple(map(call, letters)), tuple(source(letter, {}) for letter in letters)
    short = slots if lacking is None else np.delete(slots, lacking - 1)
    short["sequence"] = np.arange(1, len(short) + 1)
    traces = [
        MemoryTrace(rank, ranks, "record", (group,), calls_, sources, (), short if rank == 7 else slots)
        for rank in range(ranks)
    ]
    assert said(traces) == ([] if lacking is None else [("SC202", lacking, (7,))])
