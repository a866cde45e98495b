"""Which strides fill memory without gaps, beside numpy's own arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simcoll.core.strides import is_dense, long_dimensions


@pytest.mark.parametrize("axes", [*itertools.permutations(range(3))])
def test_any_order_of_dimensions_is_dense(axes: tuple[int, ...]) -> None:
    array = np.zeros((4, 1, 3), np.int8).transpose(axes)
    assert is_dense(array.shape, array.strides)


@pytest.mark.parametrize("array", [np.zeros((4, 6), np.int8)[:, ::2], np.broadcast_to(np.int8(0), (2, 3))])
def test_gaps_and_repeated_elements_are_not(array: np.ndarray) -> None:
    assert not is_dense(array.shape, array.strides)


def test_dimensions_of_one_do_not_count() -> None:
    assert long_dimensions((1, 4, 1), (7, 1, 9)) == [(1, 4)]
    assert is_dense((), ())
    assert is_dense((1,), (5,))
