"""The column of laws of values: pieces that add up, places alike on all ranks, bounds."""

from __future__ import annotations

import math

import pytest

from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.semantics import REDUCE_OPS, undefined_reduction
from simcoll.spec.table import Kind
from simcoll.spec.value_laws import SPOTS, Summed, ValueLaw, may_overflow, operator, pieces, salt, spots, sum_bound


def test_every_row_that_moves_data_between_all_ranks_has_a_law() -> None:
    lawless = {name for name, spec in COLLECTIVES.items() if spec.values is None}
    assert lawless == {
        name for name, spec in COLLECTIVES.items() if spec.kind in (Kind.SYNCHRONISATION, Kind.POINT_TO_POINT)
    }
    for spec in COLLECTIVES.values():
        if spec.values is not None:
            assert spec.values.reduced == (spec.kind is Kind.REDUCTION)
            assert spec.values.sent_in_parts == ("inputs" in spec.divided)
            assert spec.values.received_in_parts == ("outputs" in spec.divided)


@pytest.mark.parametrize("splits", [None, (3, 0, 5)])
def test_pieces_cover_a_buffer_once(splits: tuple[int, ...] | None) -> None:
    rows = 6 if splits is None else sum(splits)
    buffer = Buffer((rows, 2), "float32")
    call = Call("all_to_all", "alltoall_base", (buffer,), (buffer,), input_splits=splits)
    cut = [*pieces(ValueLaw(True, True), call, (buffer,), 3, sent=True)]
    assert sum(piece.count * len(piece.peers) for piece in cut) == buffer.elements
    assert [peer for piece in cut for peer in piece.peers] == [0, 1, 2]


def test_parts_that_change_places_have_other_factors() -> None:
    law = ValueLaw(True, True)
    factors = {salt(law, sender, receiver) for sender in range(8) for receiver in range(8)}
    assert len(factors) == 64
    assert all(factor % 2 for factor in factors)
    assert salt(ValueLaw(), 1, 2) == salt(ValueLaw(), 5, 0)


def test_spots_are_inside_and_all_of_a_short_row() -> None:
    assert spots(7, 3) == [0, 1, 2]
    chosen = spots(7, 10**9)
    assert len(chosen) == SPOTS
    assert chosen == sorted(chosen)
    assert 0 <= chosen[0] < chosen[-1] < 10**9
    assert spots(8, 10**9) != chosen


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint64", "bfloat16", "float16", "float32", "complex64"])
@pytest.mark.parametrize("reduce_op", REDUCE_OPS)
def test_only_defined_reductions_are_judged(reduce_op: str, dtype: str) -> None:
    if undefined_reduction(reduce_op, dtype) is not None and not dtype.startswith("complex"):
        assert operator(reduce_op, dtype) is None


def test_the_bound_grows_with_ranks_and_knows_its_dtypes() -> None:
    assert sum_bound(Summed("float8_e4m3fn", 2, 1, 1.0)) is None
    few, many = sum_bound(Summed("float32", 2, 10, 1.0)), sum_bound(Summed("float32", 64, 10, 1.0))
    assert few is not None
    assert many is not None
    assert 0 < few < many < 1e-3
    assert may_overflow("float16", 40000.0)
    assert not may_overflow("float32", 40000.0)
    assert may_overflow("float32", math.inf)
