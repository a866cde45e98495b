"""Fields of c10d's options are found where they lie, or not at all."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d  # noqa: E402

from simcoll.recorder.arguments import USUAL_FORMS, arguments, new_reader  # noqa: E402
from simcoll.recorder.option_fields import option_fields  # noqa: E402
from tests.support.native import parts  # noqa: E402

OPTIONS = {
    "allreduce": "AllreduceOptions",
    "allreduce_coalesced": "AllreduceCoalescedOptions",
    "broadcast": "BroadcastOptions",
    "reduce": "ReduceOptions",
    "gather": "GatherOptions",
    "scatter": "ScatterOptions",
    "_allgather_base": "AllgatherOptions",
    "_reduce_scatter_base": "ReduceScatterOptions",
    "alltoall_base": "AllToAllOptions",
    "barrier": "BarrierOptions",
}


def test_the_options_of_this_torch_are_found() -> None:
    assert {kind.__name__ for kind in option_fields()} >= set(OPTIONS.values())


@pytest.mark.parametrize("method", [name for name in OPTIONS if name != "alltoall_base"])
def test_what_lies_there_is_what_the_options_say(method: str) -> None:
    with parts("compiled"):
        looking = new_reader(option_fields())
    assert looking is not None
    for number, op in enumerate(dist.ReduceOp.RedOpType.__members__.values()):
        options: Any = getattr(_distributed_c10d, OPTIONS[method])()
        options.asyncOp = bool(number % 2)
        premultiplied = op == dist.ReduceOp.RedOpType.PREMUL_SUM
        reduce_op = _distributed_c10d._make_nccl_premul_sum(2.0) if premultiplied else dist.ReduceOp(op)
        for name, value in (("reduceOp", reduce_op), ("rootRank", 7 * number)):
            if hasattr(options, name):
                setattr(options, name, value)
        args = (*(torch.zeros(2) for _ in USUAL_FORMS[method][1]), options)
        found, known = (
            arguments(method, args, {}, looking.read(*USUAL_FORMS[method], args)),
            arguments(method, args, {}),
        )
        if found.known_key is not None:
            assert (found.key, found.asynchronous) == (known.key, known.asynchronous)
        else:
            assert op == dist.ReduceOp.RedOpType.UNUSED, "every reduce op that has a name is read"


class _Elsewhere:
    """Options whose fields are no memory behind a pointer."""

    asyncOp = False


def test_a_type_that_is_not_pybinds_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_distributed_c10d, "AllreduceOptions", _Elsewhere)
    found = option_fields()
    assert _Elsewhere not in found
    assert _distributed_c10d.BroadcastOptions in found


@pytest.mark.parametrize("nothing", [b"", bytes(96), os.urandom(96)], ids=["short", "zeros", "random"])
def test_memory_that_does_not_change_with_the_fields_is_not_looked_at(
    nothing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: nothing)
    assert option_fields() == {}


def test_without_proc_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert option_fields() == {}
