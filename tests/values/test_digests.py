"""Digests by numpy and by torch: the same numbers, and another one for every change of an element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import spec_of
from simcoll.values.arrays import digest_arrays
from simcoll.values.choice import Choice
from simcoll.values.tensors import ValueWatch

SIZE = 2


class Events:
    def __init__(self) -> None:
        self.written: list[dict[str, object]] = []

    def event(self, kind: str, **data: object) -> None:
        assert kind == "values"
        self.written.append(data)


def torch_digests(call: Call, rank: int, sequence: int, inputs: list[Any], outputs: list[Any]) -> dict[str, object]:
    box = Events()
    values = ValueWatch(Choice("all"), box, 0, rank, SIZE).begin(call, sequence, inputs, outputs)
    assert values is not None
    values.ended()
    values.ended()
    [written] = box.written
    return {name: side for name, side in written.items() if name in ("sent", "received")}


def call_of(op: str, arrays: list[np.ndarray[Any, Any]], outputs: list[np.ndarray[Any, Any]], **fields: Any) -> Call:
    def buffers(some: list[np.ndarray[Any, Any]]) -> tuple[Buffer, ...]:
        return tuple(Buffer(one.shape, str(one.dtype)) for one in some)

    return Call(op, op, buffers(arrays), buffers(outputs), **fields)


INTEGERS = ["bool", "uint8", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("dtype", [*INTEGERS, "float16", "float32", "complex64"])
@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "fields"),
    [
        ("all_reduce", [(37,)], [(37,)], {"reduce_op": "sum"}),
        ("all_reduce", [(37,)], [(37,)], {"reduce_op": "product"}),
        ("all_reduce", [(5, 3)], [(5, 3)], {"reduce_op": "bxor"}),
        ("all_gather", [(7,)], [(7,), (7,)], {}),
        ("all_gather", [(7, 2)], [(14, 2)], {}),
        ("reduce_scatter", [(10,)], [(5,)], {"reduce_op": "sum"}),
        ("all_to_all", [(9, 3)], [(4, 3)], {"input_splits": (4, 5), "output_splits": (0, 4)}),
    ],
)
def test_numpy_and_torch_give_the_same(
    op: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], fields: dict[str, Any], dtype: str
) -> None:
    if dtype not in INTEGERS and fields.get("reduce_op") == "bxor":
        fields = {"reduce_op": "sum"}
    random = np.random.default_rng(3)
    sides = [
        [random.integers(0, 2 if dtype == "bool" else 90, shape).astype(dtype) for shape in each]
        for each in (inputs, outputs)
    ]
    call = call_of(op, *sides, **fields)
    found = torch_digests(call, 1, 5, *([torch.from_numpy(one) for one in side] for side in sides))
    expected = {
        name: digest_arrays(call, 1, SIZE, 5, side, sent=name == "sent")
        for name, side in zip(("sent", "received"), sides, strict=True)
    }
    assert found == expected


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.int32, torch.bool, torch.complex128]
)
def test_every_changed_element_and_every_exchange_shows(dtype: Any) -> None:
    before = torch.arange(1, 23).to(torch.int32).remainder(2 if dtype == torch.bool else 97).to(dtype)
    buffers = (Buffer((22,), str(dtype).removeprefix("torch.")),)
    call = Call("broadcast", "broadcast", buffers, buffers, root=0)

    def digest(tensor: Any) -> object:
        found: Any = torch_digests(call, 0, 1, [tensor], [tensor])["sent"]
        return found["hash"]

    seen = {digest(before)}
    for place in range(22):
        changed = before.clone()
        changed[place] = 0 if dtype == torch.bool and before[place] else 1 if dtype == torch.bool else 100
        seen.add(digest(changed))
    swapped = before.clone()
    swapped[[3, 4]] = before[[4, 3]]
    assert digest(swapped) not in {digest(before)}
    assert len(seen) == 23


def test_memory_is_read_as_it_lies_and_gaps_are_left_out() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    buffer = Buffer((4, 2), "float32")
    call = Call("broadcast", "broadcast", (buffer,), (buffer,), root=0)
    gaps, dense = whole[:, 1:3], whole[:, 1:3].contiguous()
    assert torch_digests(call, 0, 1, [gaps], [gaps]) == torch_digests(call, 0, 1, [dense], [dense])
    offset = torch.arange(9.0)[1:]
    aligned = offset.clone()
    assert torch_digests(call, 0, 1, [offset], [offset]) == torch_digests(call, 0, 1, [aligned], [aligned])


def test_what_has_no_memory_of_its_own_is_left_alone() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    buffer = Buffer((4,), "float32")
    call = Call("all_reduce", "allreduce", (buffer,), (buffer,), reduce_op="sum")
    with FakeTensorMode():
        fake = torch.empty(4)
    assert ValueWatch(Choice("all"), Events(), 0, 0, SIZE).begin(call, 1, [fake], [fake]) is None
    sparse = torch.eye(4).to_sparse()
    assert ValueWatch(Choice("all"), Events(), 0, 0, SIZE).begin(call, 1, [sparse], [sparse]) is None


def test_a_digest_leaves_versions_gradients_and_modes_alone() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[object] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(4, requires_grad=True)
    version = tensor._version
    buffer = Buffer((4,), "float32")
    call = Call("all_reduce", "allreduce", (buffer,), (buffer,), reduce_op="sum")
    with Watching():
        torch_digests(call, 0, 1, [tensor], [tensor])
    assert not seen
    assert tensor._version == version
    assert tensor.grad_fn is None
    assert spec_of(call).values is not None


@pytest.mark.parametrize("dtype", ["bits8", "bits16"])
@pytest.mark.parametrize("elements", [40, 70000])
@pytest.mark.parametrize(("op", "fields"), [("broadcast", {"root": 0}), ("all_reduce", {"reduce_op": "sum"})])
def test_numbers_with_which_nobody_calculates_are_moved(
    dtype: str, elements: int, op: str, fields: dict[str, Any]
) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    row = torch.zeros(elements * kind.itemsize, dtype=torch.uint8).view(kind)
    buffers = (Buffer((elements,), dtype),)
    found = torch_digests(Call(op, op, buffers, buffers, **fields), 0, 1, [row], [row])
    assert set(found) == {"sent", "received"} if op == "all_reduce" else {"sent"}
