"""Products of 16-bit floats are computed in 32 bits, and are what the operator says they are."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simcoll.dryrun.rank.torch_patches import OperatorMode


class Seen(TorchDispatchMode):
    """Notes the dtype that operators run in."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: dict[str, torch.dtype] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(args[0], torch.Tensor):
            self.dtypes[func.name()] = args[0].dtype
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_run_in_32_bits(dtype: torch.dtype) -> None:
    linear, convolution = torch.nn.Linear(8, 4).to(dtype), torch.nn.Conv2d(2, 3, 3).to(dtype)
    row = torch.randn(5, 8).to(dtype).requires_grad_()
    with Seen() as seen, OperatorMode(None):
        made = [linear(row), convolution(torch.ones(1, 2, 4, 4, dtype=dtype)), torch.bmm(row[None], row.t()[None])]
        for one in made:
            one.sum().backward()
    assert {one.dtype for one in (*made, row.grad, linear.weight.grad, convolution.weight.grad)} == {dtype}
    products = ("aten::addmm", "aten::mm", "aten::bmm", "aten::convolution", "aten::convolution_backward")
    assert {seen.dtypes[name] for name in products} == {torch.float32}
    torch.testing.assert_close(made[0], linear(row))


def test_operands_that_differ_are_refused() -> None:
    with OperatorMode(None), pytest.raises(RuntimeError, match="dtype"):
        torch.mm(torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2))
