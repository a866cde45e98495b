"""The table: its spellings are torch's, its laws hold for what agrees and break for anything that does not."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.spec.call import Buffer, Call
from simcoll.spec.checksum import word
from simcoll.spec.collectives import COLLECTIVES, METHODS, spec_of
from simcoll.spec.table import CollectiveSpec, Kind, Rooted

DOCS = Path(__file__).parents[2] / "docs"
COLLECTIVE = [spec for spec in COLLECTIVES.values() if spec.kind is not Kind.POINT_TO_POINT]

# Names that came or will come with another release than the newest one that is supported.
LATER_METHODS = {"gather_single", "gather_into_tensor"}
LATER_FUNCTIONS: set[str] = set()


def flat(*shape: int, dtype: str = "float32") -> Buffer:
    return Buffer(shape, dtype)


def example(op: str, rank: int, size: int) -> Call:
    """A correct call of the row, uneven where it may be."""
    spelling = COLLECTIVES[op].methods[0].name
    one, root = (flat(2, 3),), size - 1
    many = (flat(2, 3),) * size
    at_root = many if rank == root else ()
    sent = tuple(flat((rank + 2 * peer) % 3, 2) for peer in range(size))
    received = tuple(flat((peer + 2 * rank) % 3, 2) for peer in range(size))
    return {
        "all_reduce": Call(op, spelling, one, one, reduce_op="sum"),
        "broadcast": Call(op, spelling, one, one, root=root),
        "reduce": Call(op, spelling, one, one, reduce_op="sum", root=root),
        "all_gather": Call(op, spelling, one, many),
        "gather": Call(op, spelling, one, at_root, root=root),
        "scatter": Call(op, spelling, at_root, one, root=root),
        "reduce_scatter": Call(op, spelling, many, one, reduce_op="sum"),
        "all_to_all": Call(op, spelling, sent, received),
        "barrier": Call(op, spelling),
        "monitored_barrier": Call(op, spelling),
    }[op]


def every(call: Call, change: Callable[[Buffer], Buffer]) -> Call:
    return replace(call, inputs=tuple(map(change, call.inputs)), outputs=tuple(map(change, call.outputs)))


BREAKS: dict[str, Callable[[Call, int], Call]] = {
    "op": lambda call, size: example("barrier" if call.op != "barrier" else "monitored_barrier", 0, size),
    "dtype": lambda call, size: every(call, lambda buffer: replace(buffer, dtype="int32")),
    "device": lambda call, size: every(call, lambda buffer: replace(buffer, device="cuda")),
    "reduce_op": lambda call, size: replace(call, reduce_op="max"),
    "root": lambda call, size: replace(call, root=((call.root or 0) + 1) % size),
    "count": lambda call, size: every(call, lambda buffer: replace(buffer, shape=(5, 3))),
    "shape": lambda call, size: every(call, lambda buffer: replace(buffer, shape=buffer.shape[::-1])),
    "order": lambda call, size: every(call, lambda buffer: replace(buffer, order=(1, 0))),
}


def total(calls: Sequence[Call]) -> int:
    return sum(word(call, rank, len(calls)) for rank, call in enumerate(calls)) % 2**64


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("spec", COLLECTIVE, ids=lambda spec: spec.name)
def test_breaking_any_field_of_agreement_on_any_rank_breaks_the_law(spec: CollectiveSpec, size: int) -> None:
    calls = [example(spec.name, rank, size) for rank in range(size)]
    assert total(calls) == 0
    assert spec.agree <= set(BREAKS)
    for field in spec.agree:
        for rank in range(size):
            broken = [*calls]
            broken[rank] = BREAKS[field](calls[rank], size)
            assert total(broken) != 0, f"{field} on rank {rank}"


def test_what_ranks_never_agree_on_breaks_nothing() -> None:
    calls = [example("all_reduce", rank, 3) for rank in range(3)]
    calls[1] = every(calls[1], lambda buffer: replace(buffer, index=1, shape=(1, *buffer.shape)))
    assert total(calls) == 0


def test_spellings_of_one_collective_agree() -> None:
    one, size = (flat(2, 3),), 3
    spelled = [
        Call("all_gather", "allgather", one, one * size),
        Call("all_gather", "_allgather_base", one, (flat(6, 3),)),
        Call("all_gather", "all_gather_single_coalesced", one, (flat(6, 3),), coalesced=True),
    ]
    assert total(spelled) == 0


def test_memory_order_and_shape_of_nothing_are_not_compared() -> None:
    shapes = [(0, 3), (3, 0), (0,)]
    assert total([Call("all_reduce", "allreduce", (flat(*s),), (flat(*s),), reduce_op="sum") for s in shapes]) == 0


sizes = st.integers(1, 6)


@st.composite
def matrices(draw: st.DrawFn) -> list[list[int]]:
    """Rows that each rank sends to each rank."""
    size = draw(sizes)
    return draw(st.lists(st.lists(st.integers(0, 4), min_size=size, max_size=size), min_size=size, max_size=size))


def exchange(rows: list[list[int]], width: int) -> list[Call]:
    received = [[row[rank] for row in rows] for rank in range(len(rows))]
    return [
        Call(
            "all_to_all",
            "alltoall_base",
            (flat(sum(sent), width),),
            (flat(sum(got), width),),
            input_splits=tuple(sent),
            output_splits=tuple(got),
        )
        for sent, got in zip(rows, received, strict=True)
    ]


@pytest.mark.slow
@given(matrices(), st.integers(1, 3))
def test_splits_that_match_obey_the_law(rows: list[list[int]], width: int) -> None:
    assert total(exchange(rows, width)) == 0


@pytest.mark.slow
@given(matrices(), st.data())
def test_one_wrong_split_breaks_the_law(rows: list[list[int]], data: st.DataObject) -> None:
    calls = exchange(rows, 1)
    rank, peer = (data.draw(st.integers(0, len(rows) - 1)) for _ in range(2))
    side = data.draw(st.sampled_from(["input", "output"]))
    splits = list(getattr(calls[rank], f"{side}_splits"))
    splits[peer] += data.draw(st.integers(1, 9))
    wrong = {f"{side}_splits": tuple(splits), f"{side}s": (flat(sum(splits)),)}
    calls[rank] = replace(calls[rank], **wrong)
    assert total(calls) != 0


@pytest.mark.slow
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_uneven_lists_obey_the_law_and_one_wrong_part_breaks_it(counts: list[int], data: st.DataObject) -> None:
    size, listed = len(counts), tuple(flat(count) for count in counts)
    gathered = [Call("all_gather", "allgather", (flat(count),), listed) for count in counts]
    scattered = [Call("reduce_scatter", "reduce_scatter", listed, (flat(count),), reduce_op="sum") for count in counts]
    assert total(gathered) == total(scattered) == 0
    rank, peer = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    wrong = [*listed]
    wrong[peer] = flat(counts[peer] + 1)
    gathered[rank] = replace(gathered[rank], outputs=tuple(wrong))
    scattered[rank] = replace(scattered[rank], inputs=tuple(wrong))
    # Alone in its group, a rank that contradicts itself parts from nobody.
    assert (total(gathered) != 0) == (total(scattered) != 0) == (size > 1)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (Call("broadcast", "broadcast", (flat(2),), (flat(2),), root=4), "root 4 is not a rank of a group of 4"),
        (Call("all_gather", "allgather", (flat(2),), (flat(2),) * 3), "list has 3 buffers, expected 4"),
        (Call("all_gather", "_allgather_base", (flat(2),), (flat(9),)), "holds 9 elements, expected 8"),
        (Call("gather", "gather", (flat(2),), (), root=0), "list has 0 buffers, expected 4"),
        (Call("scatter", "scatter", (flat(3),) * 4, (flat(2),), root=0), "holds 3 elements, its output 2"),
        (Call("reduce_scatter", "_reduce_scatter_base", (flat(7),), (flat(2),)), "holds 7 elements, expected 8"),
        (Call("all_to_all", "alltoall", (flat(1),) * 3, (flat(1),) * 4), "list has 3 buffers, expected 4"),
        (Call("all_to_all", "alltoall_base", (flat(6),), (flat(8),)), "6 elements, which 4 ranks cannot share"),
        (
            Call("all_to_all", "alltoall_base", (flat(4),), (flat(4),), input_splits=(-1, 3, 1, 1)),
            "input splits [-1, 3, 1, 1] do not add up",
        ),
        (
            Call("all_to_all", "alltoall_base", (flat(4),), (flat(4),), output_splits=(1,) * 5),
            "are 5 sizes, expected 4",
        ),
        (Call("send", "send", (flat(1),), peer=4), "peer 4 is not a rank"),
        (
            Call("all_gather", "all_gather_single_coalesced", (flat(1),), (flat(4),) * 3, coalesced=True),
            "3 output buffers were given for 1 input buffers",
        ),
    ],
)
def test_a_call_that_contradicts_itself_says_how(call: Call, fault: str) -> None:
    assert fault in (spec_of(call).fault(call, 0, 4) or "")


def test_a_fault_on_some_ranks_is_a_mismatch_and_on_all_is_not() -> None:
    right = Call("all_gather", "allgather", (flat(2),), (flat(2),) * 3)
    short = replace(right, outputs=(flat(2),) * 2)
    assert total([right, short, right]) != 0
    assert total([short] * 3) == 0


def test_the_buffers_of_a_rooted_call_may_give_the_root_away() -> None:
    gather, scatter = COLLECTIVES["gather"], COLLECTIVES["scatter"]
    assert gather.shows_root(Call("gather", "gather", (flat(2),), (flat(2),) * 4))
    assert not gather.shows_root(Call("gather", "gather", (flat(2),)))
    assert scatter.shows_root(Call("scatter", "scatter", (flat(8),), (flat(2),)))
    assert not COLLECTIVES["broadcast"].shows_root(Call("broadcast", "broadcast", (flat(2),), (flat(2),)))


def test_flows_rest_on_fields_that_a_record_may_leave_out() -> None:
    unknown = frozenset({"reduce_op", "root", "input_splits", "output_splits"})
    both = {
        name: set(spec.hidden(Call(name, name, (flat(4),), (flat(4),)), unknown)) for name, spec in COLLECTIVES.items()
    }
    assert {name: hidden for name, hidden in both.items() if hidden} == {
        "gather": {"root"},
        "scatter": {"root"},
        "all_to_all": {"input_splits", "output_splits"},
    }
    listed = Call("all_to_all", "alltoall", (flat(1),) * 4, (flat(4),))
    assert COLLECTIVES["all_to_all"].hidden(listed, unknown) == {"output_splits"}


@pytest.mark.parametrize("spec", COLLECTIVES.values(), ids=lambda spec: spec.name)
def test_whom_a_call_cannot_end_without(spec: CollectiveSpec) -> None:
    rootless = Call(spec.name, spec.name)
    assert spec.needs(rootless, 1, 2) == (spec.rooted is None and spec.kind is not Kind.POINT_TO_POINT)
    if spec.rooted is not None:
        to_me, to_other = replace(rootless, root=1), replace(rootless, root=2)
        assert spec.needs(to_me, 1, 2) == (spec.rooted is Rooted.TO_ROOT)
        assert spec.needs(to_other, 1, 2) == (spec.rooted is Rooted.FROM_ROOT)


def test_every_method_belongs_to_one_row() -> None:
    assert len(METHODS) == sum(len(spec.methods) for spec in COLLECTIVES.values())


@pytest.mark.slow
@pytest.mark.parametrize("spec", COLLECTIVES.values(), ids=lambda spec: spec.name)
def test_every_spelling_exists_in_torch(spec: CollectiveSpec) -> None:
    torch = pytest.importorskip("torch")
    group = torch._C._distributed_c10d.ProcessGroup
    assert [m.name for m in spec.methods if not hasattr(group, m.name) and m.name not in LATER_METHODS] == []
    names = dir(torch.distributed.distributed_c10d)
    assert [name for name in spec.functions if name not in names and name not in LATER_FUNCTIONS] == []


@pytest.mark.parametrize("spec", COLLECTIVES.values(), ids=lambda spec: spec.name)
def test_traffic_is_that_of_nccl_tests(spec: CollectiveSpec) -> None:
    factor = {"all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "all_to_all": 0.75}
    assert spec.traffic(4) == factor.get(spec.name, 0.75 if spec.name in ("gather", "scatter") else 1.0)
    assert spec.schedules


def test_the_documentation_says_what_the_table_says() -> None:
    page = runpy.run_path(str(DOCS / "spec_table.py"))["page"]()
    assert (DOCS / "spec-table.md").read_text(encoding="utf-8") == page, "run: python docs/spec_table.py"
