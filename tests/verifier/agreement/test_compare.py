"""One collective's calls to findings: which code, who is wrong, and silence where nothing is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Group, Record, Source
from simcoll.spec.call import Buffer, Call
from simcoll.spec.checksum import word
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.findings.finding import Finding, Severity


def buffer(*shape: int, dtype: str = "float32", device: str = "cpu", order: tuple[int, ...] | None = None) -> Buffer:
    return Buffer(shape, dtype, device, None, order)


def all_reduce(*shape: int, op: str = "sum", **of: object) -> Call:
    tensors = (buffer(*shape, **of),)
    return Call("all_reduce", "allreduce", tensors, tensors, reduce_op=op)


def broadcast(*shape: int, root: int = 0, **of: object) -> Call:
    tensors = (buffer(*shape, **of),)
    return Call("broadcast", "broadcast", tensors, tensors, root=root)


def coalesced(*tensors: Buffer) -> Call:
    return Call("all_reduce", "allreduce_coalesced", tensors, tensors, reduce_op="sum", coalesced=True)


def gather(mine: int, root: int, parts: Sequence[int] = ()) -> Call:
    return Call("gather", "gather", (buffer(mine),), tuple(map(buffer, parts)), root=root)


def scatter(mine: int, root: int, parts: Sequence[int] = ()) -> Call:
    return Call("scatter", "scatter", tuple(map(buffer, parts)), (buffer(mine),), root=root)


def all_gather(mine: int, parts: Sequence[int]) -> Call:
    return Call("all_gather", "allgather", (buffer(mine),), tuple(map(buffer, parts)))


def shaped_gather(mine: tuple[int, ...], *parts: tuple[int, ...]) -> Call:
    return Call("all_gather", "allgather", (buffer(*mine),), tuple(buffer(*part) for part in parts))


def all_gather_base(mine: int, whole: int) -> Call:
    return Call("all_gather", "_allgather_base", (buffer(mine),), (buffer(whole),))


def reduce_scatter(mine: int, whole: int) -> Call:
    return Call("reduce_scatter", "_reduce_scatter_base", (buffer(whole),), (buffer(mine),), reduce_op="sum")


def exchange(sends: Sequence[int] | None, receives: Sequence[int] | None, rows: int = 0, columns: int = 1) -> Call:
    incoming, outgoing = (sum(sizes) if sizes else rows for sizes in (receives, sends))
    return Call(
        "all_to_all",
        "alltoall_base",
        (buffer(outgoing, columns),),
        (buffer(incoming, columns),),
        input_splits=None if sends is None else tuple(sends),
        output_splits=None if receives is None else tuple(receives),
    )


def judged(*calls: Call | None, ranks: Sequence[int] | None = None, strict: bool = True) -> list[Finding]:
    group = Group("0", "default_pg", tuple(ranks or range(len(calls))))
    sources = [Source("train.py", 10 + place, "step", "call()") for place in range(len(calls))]
    records = {
        rank: Record("0", 7, call, source)
        for rank, (call, source) in enumerate(zip(calls, sources, strict=True))
        if call is not None
    }
    return compare(group, records, strict=strict)


SAME = all_reduce(20, 10)
EVEN = exchange([2, 2, 2, 2], [2, 2, 2, 2])

ONE_CAUSE: dict[str, tuple[list[Call], str, tuple[int, ...], tuple[str, ...]]] = {
    "op": ([SAME, SAME, Call("barrier", "barrier"), SAME], "SC101", (2,), ("op",)),
    "op, and nothing else of it": ([SAME, broadcast(3, dtype="int64"), SAME], "SC101", (1,), ("op",)),
    "barriers of two kinds": (
        [Call("barrier", "barrier"), Call("monitored_barrier", "monitored_barrier")],
        "SC101",
        (),
        ("op",),
    ),
    "count": ([SAME, SAME, all_reduce(20, 11)], "SC102", (2,), ("count",)),
    "count, two ranks": ([SAME, all_reduce(3)], "SC102", (), ("count",)),
    "empty on one rank": ([SAME, SAME, all_reduce(0)], "SC102", (2,), ("count",)),
    "dtype": ([SAME, all_reduce(20, 10, dtype="int32"), SAME], "SC103", (1,), ("dtype",)),
    "dtype and count, one rank": ([SAME, SAME, all_reduce(5, dtype="int32")], "SC103", (2,), ("dtype", "count")),
    "reduce op": ([SAME, SAME, all_reduce(20, 10, op="max"), SAME], "SC104", (2,), ("reduce_op",)),
    "root": ([broadcast(4), broadcast(4, root=1), broadcast(4)], "SC105", (1,), ("root",)),
    "root of a gather, prepared for": ([gather(4, 0, (4, 4)), gather(4, 1, (4, 4))], "SC105", (), ("root",)),
    "device": ([SAME, SAME, all_reduce(20, 10, device="cuda")], "SC107", (2,), ("device",)),
    "shape": ([SAME, SAME, all_reduce(10, 20)], "SC109", (2,), ("shape",)),
    "shape of a part that has another place": (
        [shaped_gather((2, 3), (2, 3), (2, 3), (2, 3))] * 2 + [shaped_gather((3, 2), (2, 3), (2, 3), (2, 3))],
        "SC109",
        (2,),
        ("shape",),
    ),
    "layout": ([SAME, SAME, all_reduce(20, 10, order=(1, 0))], "SC108", (2,), ("order",)),
    "layout of a broadcast": (
        [broadcast(20, 10), broadcast(20, 10), broadcast(20, 10, order=(1, 0))],
        "SC108",
        (2,),
        ("order",),
    ),
    "coalesced order": (
        [coalesced(buffer(3), buffer(4)), coalesced(buffer(4), buffer(3)), coalesced(buffer(3), buffer(4))],
        "SC110",
        (1,),
        ("contents",),
    ),
    "coalesced number": ([coalesced(buffer(3), buffer(4)), coalesced(buffer(3))], "SC110", (), ("contents",)),
    "coalesced dtype": (
        [
            coalesced(buffer(3), buffer(1)),
            coalesced(buffer(3), buffer(1)),
            coalesced(buffer(3), buffer(1, dtype="int8")),
        ],
        "SC110",
        (2,),
        ("contents",),
    ),
    "coalesced, but a single tensor": (
        [coalesced(buffer(3)), coalesced(buffer(3)), coalesced(buffer(4))],
        "SC102",
        (2,),
        ("count",),
    ),
    "gather, one sender": ([gather(4, 0, (4, 4, 4)), gather(4, 0), gather(5, 0)], "SC102", (2,), ("count",)),
    "gather, one part": (
        [gather(4, 0, (4, 4, 5, 4)), gather(4, 0), gather(4, 0), gather(4, 0)],
        "SC102",
        (0,),
        ("count",),
    ),
    "scatter, one receiver": (
        [scatter(4, 0, (4, 4, 4, 4)), scatter(4, 0), scatter(3, 0), scatter(4, 0)],
        "SC102",
        (2,),
        ("count",),
    ),
    "scatter, two ranks": ([scatter(1, 0, (1, 1)), scatter(2, 0)], "SC102", (), ("count",)),
    "all_gather, one input": (
        [all_gather(4, (4, 4, 4)), all_gather(5, (4, 4, 4)), all_gather(4, (4, 4, 4))],
        "SC102",
        (1,),
        ("count",),
    ),
    "uneven all_gather, one expects wrongly": (
        [all_gather(4, (4, 3, 5)), all_gather(3, (4, 3, 6)), all_gather(5, (4, 3, 5))],
        "SC102",
        (1,),
        ("count",),
    ),
    "reduce_scatter": (
        [reduce_scatter(8, 32), reduce_scatter(7, 30), reduce_scatter(8, 32), reduce_scatter(8, 32)],
        "SC102",
        (1,),
        ("count",),
    ),
    "splits, one pair": ([EVEN, exchange([2, 2, 3, 2], [2, 2, 2, 2]), EVEN, EVEN], "SC106", (1,), ("splits",)),
    "splits, a whole row": ([EVEN, exchange([1, 2, 3, 3], [2, 2, 2, 2]), EVEN, EVEN], "SC106", (1,), ("splits",)),
    "splits, expectations": ([EVEN, exchange([2, 2, 2, 2], [3, 2, 3, 3]), EVEN, EVEN], "SC106", (1,), ("splits",)),
    "splits, two ranks": ([exchange([1, 3], [1, 2]), exchange([2, 2], [2, 2])], "SC106", (), ("splits",)),
    "even exchange of other sizes": ([exchange(None, None, 8), exchange(None, None, 12)], "SC102", (), ("count",)),
    "a list that is too short": (
        [all_gather(4, (4, 4, 4)), all_gather(4, (4, 4)), all_gather(4, (4, 4, 4))],
        "SC601",
        (1,),
        ("arguments",),
    ),
    "root outside the group": (
        [broadcast(4), broadcast(4, root=7), broadcast(4)],
        "SC601",
        (1,),
        ("arguments", "root"),
    ),
}


@pytest.mark.parametrize("name", ONE_CAUSE)
def test_one_cause_gives_one_finding(name: str) -> None:
    calls, code, culprits, differing = ONE_CAUSE[name]
    (finding,) = judged(*calls)
    assert (finding.code, finding.culprits, finding.differing) == (code, culprits, differing)
    assert finding.severity is Severity.ERROR
    assert finding.sequence == 7
    assert finding.ranks == tuple(range(len(calls)))


SILENT: dict[str, list[Call | None]] = {
    "equal": [SAME, SAME],
    "dimensions of size one": [SAME, all_reduce(20, 1, 10), all_reduce(1, 20, 10)],
    "row-major, spelt out": [SAME, all_reduce(20, 10, order=(0, 1))],
    "other device number": [
        SAME,
        Call("all_reduce", "allreduce", *[(Buffer((20, 10), "float32", "cpu", 3),)] * 2, "sum"),
    ],
    "nothing in them": [all_reduce(0, 5), all_reduce(0, 3)],
    "two spellings": [all_gather(4, (4, 4)), all_gather_base(4, 8)],
    "uneven all_gather": [all_gather(4, (4, 3)), all_gather(3, (4, 3))],
    "uneven gather": [gather(4, 0, (4, 3, 6)), gather(3, 0), gather(6, 0)],
    "uneven exchange": [exchange([1, 3], [1, 0]), exchange([0, 2], [3, 2])],
    "stated and even splits": [exchange([2, 2], [2, 2]), exchange(None, None, 4)],
    "rows of two widths, equal elements": [exchange([2, 2], [2, 2]), exchange([1, 1], [1, 1], columns=2)],
    "all at fault: the backend refuses them": [all_gather(4, (4,)), all_gather(4, (4,))],
    "own shapes in one list of outputs": [shaped_gather((2, 3), (2, 3), (3, 2)), shaped_gather((3, 2), (2, 3), (3, 2))],
    "nobody there": [None, None],
    "an op of a later version": [Call("all_swap", "allswap"), Call("all_swap", "allswap")],
    "send and receive": [Call("send", "send", (buffer(3),), peer=1), Call("recv", "recv", (), (buffer(4),), peer=0)],
}


@pytest.mark.parametrize("name", SILENT)
def test_what_belongs_together_is_silent(name: str) -> None:
    assert judged(*SILENT[name]) == []


def test_two_causes_give_two_findings() -> None:
    findings = judged(SAME, all_reduce(20, 10, dtype="int32"), all_reduce(20, 10, op="max"), SAME, SAME)
    assert [(finding.code, finding.culprits) for finding in findings] == [("SC103", (1,)), ("SC104", (2,))]


def test_a_tie_names_nobody() -> None:
    (finding,) = judged(SAME, SAME, all_reduce(20, 10, op="max"), all_reduce(20, 10, op="max"))
    assert finding.culprits == ()


def test_missing_ranks_are_not_judged() -> None:
    (finding,) = judged(SAME, None, all_reduce(3), SAME)
    assert (finding.ranks, finding.culprits) == ((0, 2, 3), (2,))
    assert judged(EVEN, None, EVEN, None) == []


def test_findings_speak_of_global_ranks() -> None:
    (finding,) = judged(broadcast(4), broadcast(4, root=1), broadcast(4), ranks=[5, 6, 9])
    assert finding.culprits == (6,)
    assert finding.message == "rank 6 has root 6, ranks 5 and 9 have root 5"


def test_sides_carry_ranks_call_and_lines_the_largest_first() -> None:
    (finding,) = judged(SAME, SAME, all_reduce(20, 10, op="max"), SAME)
    assert finding.message == "rank 2 reduces with max, ranks 0-1 and 3 reduce with sum"
    assert [side.ranks for side in finding.sides] == [(0, 1, 3), (2,)]
    assert [stated.source.line for stated in finding.sides[0].sources] == [10, 11, 13]


def test_broken_flows_name_the_pair() -> None:
    (finding,) = judged(exchange([1, 3], [1, 2]), exchange([2, 2], [2, 2]))
    assert finding.message == "rank 0 sends 3 elements to rank 1, which expects 2"


@pytest.mark.parametrize(
    ("call", "other", "strict", "severity"),
    [
        (SAME, all_reduce(200), True, Severity.WARNING),
        (SAME, all_reduce(10, 20), False, Severity.ERROR),
        (broadcast(4, 5), broadcast(5, 4), True, Severity.ERROR),
        (broadcast(4, 5), broadcast(5, 4), False, Severity.WARNING),
        (broadcast(4, 5), broadcast(20), True, Severity.WARNING),
        (broadcast(4, 5), broadcast(4, 5, order=(1, 0)), False, Severity.ERROR),
        (SAME, all_reduce(20, 10, order=(1, 0)), False, Severity.ERROR),
    ],
)
def test_how_grave_a_shape_is(call: Call, other: Call, strict: bool, severity: Severity) -> None:
    (finding,) = judged(call, other, strict=strict)
    assert finding.severity is severity


def test_unknown_fields_are_named_not_assumed() -> None:
    silent = Call("all_reduce", "allreduce", (buffer(4),), (buffer(4),))
    other = Call("all_reduce", "allreduce", (buffer(5),), (buffer(5),))
    (finding,) = judged(silent, other)
    assert finding.unknown == ("reduce_op",)


SIZES = st.lists(st.integers(-3, 9), max_size=5).map(tuple)
BUFFERS = st.builds(
    Buffer,
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.sampled_from(["float32", "int64", ""]),
    st.sampled_from(["cpu", "cuda"]),
    st.none(),
    st.none() | st.lists(st.integers(-1, 3), max_size=3).map(tuple),
)
CALLS = st.builds(
    Call,
    st.sampled_from(["all_reduce", "gather", "scatter", "all_to_all", "all_gather", "reduce_scatter", "barrier", "?"]),
    st.just("x"),
    st.lists(BUFFERS, max_size=4).map(tuple),
    st.lists(BUFFERS, max_size=4).map(tuple),
    reduce_op=st.none() | st.sampled_from(["sum", "max"]),
    root=st.none() | st.integers(-2, 5),
    input_splits=st.none() | SIZES,
    output_splits=st.none() | SIZES,
    coalesced=st.booleans(),
)


@pytest.mark.slow
@given(st.lists(CALLS, min_size=1, max_size=4), st.booleans())
def test_odd_calls_are_judged_never_refused(calls: list[Call], strict: bool) -> None:
    for finding in judged(*calls, strict=strict):
        assert finding.message
        assert set(finding.culprits) <= set(finding.ranks)


@pytest.mark.slow
@given(CALLS, st.integers(1, 4))
def test_equal_counted_calls_are_silent(call: Call, ranks: int) -> None:
    if call.op in ("all_reduce", "barrier", "?"):
        assert judged(*[call] * ranks) == []


@pytest.mark.slow
@given(st.lists(CALLS.filter(lambda call: call.op != "?"), min_size=1, max_size=4))
def test_words_that_add_up_to_zero_leave_nothing_to_find(calls: list[Call]) -> None:
    total = sum(word(call, rank, len(calls)) for rank, call in enumerate(calls)) % 2**64
    if total == 0:
        assert judged(*calls) == []


@given(st.sampled_from([call for calls, *_ in ONE_CAUSE.values() for call in [calls]]))
def test_words_do_not_add_up_where_something_is_wrong(calls: list[Call]) -> None:
    assert sum(word(call, rank, len(calls)) for rank, call in enumerate(calls)) % 2**64 != 0
