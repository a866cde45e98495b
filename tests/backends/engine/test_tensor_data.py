"""The engine's view of tensors leaves the tensors as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from simcoll.backends.engine.tensor_data import TensorData

_DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("make", [torch.Tensor.clone, torch.nn.Parameter], ids=["tensor", "parameter"])
def test_a_storage_that_was_read_and_filled_can_still_be_resized(
    dtype: torch.dtype, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    if make is torch.nn.Parameter and not (dtype.is_floating_point or dtype.is_complex):
        pytest.skip("only floats are parameters")
    source, target = (make(torch.ones(4).to(dtype)) for _ in range(2))
    data = TensorData([source], [target])
    data.write(data.read())
    for tensor in (source, target):
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view], ids=["conj", "neg"])
def test_what_looks_other_than_it_lies_is_read_as_it_looks(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = view(torch.tensor([1 + 2j, 3 - 4j]))
    assert TensorData([tensor], []).read()[0].tolist() == tensor.tolist()


@pytest.mark.parametrize("target", [torch.zeros(2, 6), torch.zeros(6, 2).t()], ids=["contiguous", "transposed"])
def test_a_repeated_row_fills_a_tensor_of_another_shape(target: torch.Tensor) -> None:
    TensorData([], [target]).write([np.broadcast_to(np.arange(3.0), (4, 3))])
    assert target.tolist() == [[0, 1, 2] * 2] * 2


def test_a_tensor_is_filled_from_its_own_memory() -> None:
    target = torch.arange(4.0)
    data = TensorData([target[2:]], [target])
    data.write([np.broadcast_to(data.read()[0], (2, 2))])
    assert target.tolist() == [2, 3, 2, 3]
