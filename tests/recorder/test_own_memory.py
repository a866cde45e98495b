"""Outputs of one call that share memory are told, but not the padding of a list."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch._C._distributed_c10d import AllgatherOptions

from simcoll.backends.gloo import GLOO
from simcoll.recorder.arguments import arguments
from simcoll.recorder.own_memory import Separate

ONE, TWO, BIN = (torch.zeros(4) for _ in range(3))
WHOLE = torch.zeros(12)


def fault(outputs: list[torch.Tensor]) -> str | None:
    call = arguments("allgather", ([outputs], [torch.ones(4)], AllgatherOptions()), {})
    separate = Separate.of(call, None, 0)
    assert separate is not None
    found = separate.fault(call)
    return None if found is None else found.reason.partition(":")[0]


@pytest.mark.parametrize("outputs", [[ONE, TWO, BIN, BIN], [ONE, BIN, BIN, BIN], [*WHOLE.chunk(3), BIN]])
def test_a_tensor_that_pads_the_end_of_a_list_takes_what_nobody_needs(outputs: list[torch.Tensor]) -> None:
    assert fault(outputs) is None


@pytest.mark.parametrize(
    ("outputs", "pair"),
    [
        ([BIN] * 4, "0 and 1"),
        ([BIN, BIN, ONE, TWO], "0 and 1"),
        ([ONE, BIN, BIN, TWO], "1 and 2"),
        ([ONE, WHOLE[:4], WHOLE[2:6]], "1 and 2"),
        ([WHOLE[:4], WHOLE[2:6], WHOLE[2:6]], "0 and 1"),
    ],
)
def test_outputs_that_share_memory_are_told(outputs: list[torch.Tensor], pair: str) -> None:
    assert fault(outputs) == f"outputs {pair} share memory"


def exchanged(values: torch.Tensor) -> str | None:
    call = arguments("alltoall_base", (values, values, [], []), {})
    separate = Separate.of(call, GLOO, 0)
    assert separate is not None
    found = separate.fault(call)
    return None if found is None else found.code


def test_an_exchange_in_place_is_told_but_not_one_that_only_tries_whether_it_exists() -> None:
    assert exchanged(torch.arange(4.0)) == "SC503"
    assert exchanged(torch.zeros(4)) is None
