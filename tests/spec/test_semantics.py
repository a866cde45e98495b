"""What each collective means, by small examples that a reader can check by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from simcoll.spec import semantics
from simcoll.spec.call import Buffer, Call
from simcoll.spec.semantics import Array, undefined_reduction


def call(op: str, inputs: Sequence[Array], outputs: Sequence[tuple[int, ...]], **stated: Any) -> Call:
    dtype = inputs[0].dtype.name if len(inputs) else "float64"
    return Call(
        op,
        op,
        tuple(Buffer(array.shape, dtype) for array in inputs),
        tuple(Buffer(shape, dtype) for shape in outputs),
        **stated,
    )


def reduced(op: str, *ranks: Sequence[object], dtype: str = "int32") -> list[object]:
    arrays = [[np.array(values, dtype)] for values in ranks]
    calls = [call("all_reduce", mine, [mine[0].shape], reduce_op=op) for mine in arrays]
    results = semantics.all_reduce(calls, arrays)
    assert all(out is not None and out.dtype == dtype for outputs in results for out in outputs)
    assert len({str(outputs) for outputs in results}) == 1
    first = results[0][0]
    assert first is not None
    values: list[object] = first.tolist()
    return values


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", [8, -4]),
        ("avg", [2, -1]),
        ("premul_sum", [8, -4]),
        ("product", [15, -3]),
        ("min", [3, -3]),
        ("max", [5, 1]),
        ("band", [1, 0]),
        ("bor", [7, -1]),
        ("bxor", [3, 0]),
    ],
)
def test_reduce_ops_on_integers(op: str, expected: list[int]) -> None:
    ranks = {
        "avg": [(3, -3), (5, -1), (0, 0), (0, -2)],
        "bxor": [(1, 3), (2, 3)],
        "band": [(3, -4), (5, 3)],
        "bor": [(3, -4), (5, 3)],
    }.get(op, [(3, 1), (5, -3)])
    if op in ("sum", "premul_sum"):
        ranks = [(3, -1), (5, -3)]
    assert reduced(op, *ranks) == expected


def test_the_mean_of_integers_is_cut_towards_zero() -> None:
    assert reduced("avg", [7, -7, 1], [0, 0, 0]) == [3, -3, 0]


def test_the_mean_of_unsigned_integers_does_not_wrap_below_zero() -> None:
    assert reduced("avg", [7, 1], [0, 0], dtype="uint8") == [3, 0]


def test_integers_wrap_around() -> None:
    assert reduced("sum", [127], [1], dtype="int8") == [-128]


def test_bool_adds_with_or_and_multiplies_with_and() -> None:
    a, b = [True, True, False], [True, False, False]
    assert reduced("sum", a, b, dtype="bool") == [True, True, False]
    assert reduced("product", a, b, dtype="bool") == [True, False, False]
    assert reduced("bxor", a, b, dtype="bool") == [False, True, False]


def test_half_precision_is_rounded_once() -> None:
    assert reduced("sum", [2048.0], [1.0], [1.0], dtype="float16") == [2050.0]


def test_complex_numbers_add_and_average() -> None:
    assert reduced("sum", [1 + 2j], [3 - 1j], dtype="complex64") == [4 + 1j]
    assert reduced("avg", [1 + 2j], [3 - 2j], dtype="complex64") == [2 + 0j]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("min", "complex64"), ("product", "complex128"), ("bor", "float32"), ("band", "bfloat16"), ("avg", "bool")],
)
def test_reductions_without_a_meaning_are_refused(op: str, dtype: str) -> None:
    assert dtype in (undefined_reduction(op, dtype) or "")
    if dtype != "bfloat16":
        with pytest.raises(ValueError, match=f"{op} is not defined for {dtype}"):
            reduced(op, [1], [1], dtype=dtype)


def test_unknown_reduce_ops_are_refused_with_the_known_ones() -> None:
    assert undefined_reduction("median", "float32") == (
        "reduce op median is unknown, expected one of sum, avg, premul_sum, product, min, max, band, bor, bxor"
    )


def ranks_of(*values: Sequence[float]) -> list[list[Array]]:
    return [[np.array(mine, "float64")] for mine in values]


def as_lists(results: Sequence[Sequence[Array | None]]) -> list[list[Any]]:
    return [[None if out is None else out.tolist() for out in outputs] for outputs in results]


def test_reduce_leaves_the_other_ranks_undefined() -> None:
    inputs = ranks_of([1, 2], [3, 4])
    calls = [call("reduce", mine, [(2,)], reduce_op="sum", root=1) for mine in inputs]
    assert as_lists(semantics.reduce(calls, inputs)) == [[None], [[4, 6]]]


def test_broadcast_gives_everybody_the_roots_elements_in_their_own_shape() -> None:
    inputs: list[list[Array]] = [[np.zeros(4)], [np.arange(4.0).reshape(2, 2)]]
    calls = [call("broadcast", mine, [mine[0].shape], root=1) for mine in inputs]
    assert as_lists(semantics.broadcast(calls, inputs)) == [[[0, 1, 2, 3]], [[[0, 1], [2, 3]]]]


def test_all_gather_fills_a_list_a_row_or_a_stack() -> None:
    inputs = ranks_of([1, 2], [3, 4])
    forms: list[list[tuple[int, ...]]] = [[(2,), (2,)], [(4,)]]
    calls = [call("all_gather", mine, form) for mine, form in zip(inputs, forms, strict=True)]
    assert as_lists(semantics.all_gather(calls, inputs)) == [[[1, 2], [3, 4]], [[1, 2, 3, 4]]]
    stacks = [call("all_gather", mine, [(2, 2)]) for mine in inputs]
    assert as_lists(semantics.all_gather(stacks, inputs)) == [[[[1, 2], [3, 4]]]] * 2


def test_all_gather_takes_uneven_and_empty_parts() -> None:
    inputs = ranks_of([], [3], [4, 5])
    calls = [call("all_gather", mine, [(0,), (1,), (2,)]) for mine in inputs]
    assert as_lists(semantics.all_gather(calls, inputs)) == [[[], [3], [4, 5]]] * 3


def test_a_coalesced_all_gather_gathers_each_tensor_by_itself() -> None:
    inputs = [[np.array([1.0]), np.array([2.0, 3.0])], [np.array([4.0]), np.array([5.0, 6.0])]]
    whole = [call("all_gather", mine, [(2,), (4,)], coalesced=True) for mine in inputs]
    assert as_lists(semantics.all_gather(whole, inputs)) == [[[1, 4], [2, 3, 5, 6]]] * 2
    lists = [call("all_gather", mine, [(1,), (2,), (1,), (2,)], coalesced=True) for mine in inputs]
    assert as_lists(semantics.all_gather(lists, inputs)) == [[[1], [2, 3], [4], [5, 6]]] * 2


def test_gather_fills_only_the_root() -> None:
    inputs = ranks_of([1], [2])
    calls = [call("gather", inputs[0], [], root=1), call("gather", inputs[1], [(1,), (1,)], root=1)]
    assert as_lists(semantics.gather(calls, inputs)) == [[], [[1], [2]]]


def test_scatter_deals_out_the_roots_list() -> None:
    inputs: list[list[Array]] = [[], [np.array([1.0]), np.array([2.0, 3.0])]]
    calls = [call("scatter", inputs[0], [(1,)], root=1), call("scatter", inputs[1], [(2,)], root=1)]
    assert as_lists(semantics.scatter(calls, inputs)) == [[[1]], [[2, 3]]]


def test_reduce_scatter_keeps_each_rank_its_part() -> None:
    inputs = ranks_of([1, 2, 3, 4], [10, 20, 30, 40])
    calls = [call("reduce_scatter", mine, [(2,)], reduce_op="sum") for mine in inputs]
    assert as_lists(semantics.reduce_scatter(calls, inputs)) == [[[11, 22]], [[33, 44]]]


def test_uneven_reduce_scatter_follows_the_lists() -> None:
    inputs = [[np.array([1.0]), np.array([2.0, 3.0])], [np.array([10.0]), np.array([20.0, 30.0])]]
    calls = [call("reduce_scatter", mine, [(rank + 1,)], reduce_op="max") for rank, mine in enumerate(inputs)]
    assert as_lists(semantics.reduce_scatter(calls, inputs)) == [[[10]], [[20, 30]]]


def test_all_to_all_with_splits_orders_by_sender() -> None:
    inputs = ranks_of([1, 2, 3], [4, 5])
    calls = [
        call("all_to_all", inputs[0], [(2,)], input_splits=(1, 2), output_splits=(1, 1)),
        call("all_to_all", inputs[1], [(3,)], input_splits=(1, 1), output_splits=(2, 1)),
    ]
    assert as_lists(semantics.all_to_all(calls, inputs)) == [[[1, 4]], [[2, 3, 5]]]


def test_all_to_all_lists_are_a_transpose() -> None:
    inputs = [[np.array([10.0 * i + j]) for j in range(3)] for i in range(3)]
    calls = [call("all_to_all", mine, [(1,)] * 3) for mine in inputs]
    assert as_lists(semantics.all_to_all(calls, inputs))[1] == [[1], [11], [21]]


def test_point_to_point_fills_the_receiver() -> None:
    calls = [call("send", [np.array([1.0, 2.0])], []), call("recv", [], [(2,)])]
    assert as_lists(semantics.point_to_point(calls, [[np.array([1.0, 2.0])], []])) == [[], [[1, 2]]]


def test_results_are_nobodys_inputs() -> None:
    inputs = ranks_of([1], [2])
    calls = [call("broadcast", mine, [(1,)], root=0) for mine in inputs]
    results = semantics.broadcast(calls, inputs)
    assert not any(np.shares_memory(out, inputs[0][0]) for outputs in results for out in outputs if out is not None)
