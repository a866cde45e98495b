"""Numbers that rest on unknown values compute as others do, stay marked, and tell of comparisons."""

from __future__ import annotations

import math
import operator
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.taint import (
    TaintedFloat,
    TaintedInt,
    TaintTracker,
    on_comparison,
    tainted,
    tainted_numbers,
)

OPERATORS: list[Callable[[Any, Any], Any]] = [
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv),
]
WHOLE: list[Callable[[Any, Any], Any]] = [operator.and_, operator.or_, operator.xor]


@given(st.integers(-50, 50), st.integers(1, 50), st.sampled_from(OPERATORS + WHOLE))
def test_arithmetic_keeps_the_mark_on_either_side(one: int, other: int, compute: Callable[[Any, Any], Any]) -> None:
    expected = compute(one, other)
    for found in (compute(TaintedInt(one), other), compute(one, TaintedInt(other))):
        assert found == expected
        assert type(found) in (TaintedInt, TaintedFloat)


@given(st.lists(st.integers(0, 99), min_size=1))
def test_a_sum_of_splits_is_marked(splits: list[int]) -> None:
    marked = tainted(splits)
    assert type(sum(marked)) is TaintedInt
    assert tainted_numbers((sum(marked), 4)) >= {sum(splits)}
    assert math.ceil(sum(marked) * 1.5) == math.ceil(sum(splits) * 1.5)


@given(st.integers(2, 10**6))
def test_sizes_that_int_has_stripped_are_known(value: int) -> None:
    plain = int(TaintedInt(value))
    assert type(plain) is int
    assert tainted_numbers((plain,)) == {value}


@pytest.mark.parametrize("value", [3, 2.5])
def test_a_comparison_is_told_and_a_print_is_not(value: float) -> None:
    told: list[object] = []
    on_comparison(told.append)
    marked = tainted(value)
    assert (str(marked), f"{marked:.1f}") == (str(value), f"{value:.1f}")
    assert not told
    assert marked < 10
    assert not marked > 10
    assert bool(marked)
    assert told == [True, False, True]
    on_comparison(lambda outcome: None)


def test_a_float_that_becomes_a_plain_number_is_told() -> None:
    told: list[object] = []
    on_comparison(told.append)
    plain = int(TaintedFloat(2.5)), float(TaintedFloat(2.5))
    assert [type(one) for one in plain] == [int, float]
    assert told == [2, 2.5]
    on_comparison(lambda outcome: None)


@pytest.mark.parametrize("value", [3, 2.5])
def test_a_lookup_is_told(value: float) -> None:
    told: list[object] = []
    on_comparison(told.append)
    with pytest.raises(KeyError):
        {5: "five"}[tainted(value)]
    assert str(told) == str([value])
    assert {value: "found"}[tainted(value)] == "found"
    on_comparison(lambda outcome: None)


def test_a_mark_is_not_pickled() -> None:
    assert [type(pickle.loads(pickle.dumps(tainted(value)))) for value in (3, 2.5)] == [int, float]


def test_what_math_makes_of_a_mark_is_marked_and_its_truths_are_told() -> None:
    told: list[object] = []
    with Patches() as patches:
        TaintTracker(lambda: None).install(patches)
        on_comparison(told.append)
        assert type(math.exp(TaintedFloat(1))) is TaintedFloat
        assert type(math.isqrt(TaintedInt(9))) is TaintedInt
        assert [type(one) for one in (math.exp(1.0), math.isqrt(9))] == [float, int]
        assert not told
        assert math.isnan(TaintedFloat("nan"))
        assert not math.isinf(TaintedFloat(1))
        assert told == [True, False]
    on_comparison(lambda outcome: None)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="torch.jit.script does not support this Python")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compiles_functions_of_math_as_before() -> None:
    with Patches() as patches:
        TaintTracker(lambda: None).install(patches)

        @torch.jit.script
        def compiled(x: float) -> float:
            return math.exp(x) if math.isfinite(x) else math.sqrt(x)

        assert compiled(0.0) == 1
    on_comparison(lambda outcome: None)
