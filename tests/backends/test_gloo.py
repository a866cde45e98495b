"""Gloo's overlay: what it names before Gloo refuses it, and how torch prints Gloo's collectives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from simcoll.backends.gloo import GLOO
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import METHODS
from simcoll.spec.table import Kind

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402


def flat(*shape: int, dtype: str = "float32") -> Buffer:
    return Buffer(shape, dtype)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (Call("all_gather", "allgather", (flat(1),), (flat(1), flat(2))), "needs outputs of one shape, got [1], [2]"),
        (Call("scatter", "scatter", (flat(1), flat(2)), (flat(1),), root=0), "needs inputs of one shape"),
        (Call("all_gather", "_allgather_base", (flat(3),), (flat(2, 3),)), "got [2, 3] for 2 parts of [3]"),
        (Call("reduce_scatter", "reduce_scatter_single", (flat(2),), (flat(),), "sum"), "got [2] for 2 parts of []"),
        (Call("all_reduce", "allreduce", (flat(1),), (flat(1),), "premul_sum"), "no premul_sum"),
        (Call("all_reduce", "allreduce", (flat(1, dtype="int32"),), (), "avg"), "no avg for int32"),
        (Call("all_reduce", "allreduce", (flat(1, dtype="int16"),), (), "sum"), "no int16"),
        (Call("all_reduce", "allreduce", (flat(1),), (), "bor"), "bor is not defined for float32"),
        (Call("gather", "gather", (flat(1, dtype="complex64"),), (), root=1), "no complex64"),
        (Call("recv", "recv_anysource", (), (flat(0),), peer=-1, tag=0), "no empty tensor"),
        (Call("broadcast", "broadcast", (flat(1),), (), root=2), "root 2 is not a rank of a group of 2"),
    ],
)
def test_a_refusal_says_why(call: Call, reason: str) -> None:
    assert reason in (GLOO.refusal(call, 0, 2) or "")


@pytest.mark.parametrize(
    "call",
    [
        Call("all_reduce", "allreduce", (flat(1),), (flat(1),), "avg"),
        Call("reduce_scatter", "reduce_scatter", (flat(1), flat(2)), (flat(1),), "sum"),
        Call("all_to_all", "alltoall_base", (flat(3),), (flat(3),), input_splits=(1, 2), output_splits=(3, 0)),
        Call("send", "send", (flat(1, dtype="int16"),), peer=1, tag=0),
        Call("barrier", "barrier"),
    ],
    ids=lambda call: call.spelling,
)
def test_what_gloo_does_is_not_refused(call: Call) -> None:
    assert GLOO.refusal(call, 0, 2) is None


def z(*shape: int) -> Any:
    return torch.zeros(*shape)


def calls(group: Any) -> dict[str, Callable[[], Any]]:
    """A call of each method, in a group of two."""
    root = group.rank() == 0
    return {
        "allreduce": lambda: group.allreduce([z(2)]),
        "allreduce_coalesced": lambda: group.allreduce_coalesced([z(2), z(3)]),
        "broadcast": lambda: group.broadcast([z(2)], dist.BroadcastOptions()),
        "reduce": lambda: group.reduce([z(2)], dist.ReduceOptions()),
        "allgather": lambda: group.allgather([[z(2), z(2)]], [z(2)]),
        "_allgather_base": lambda: group._allgather_base(z(4), z(2)),
        "all_gather_single": lambda: group.all_gather_single(z(4), z(2)),
        "allgather_coalesced": lambda: group.allgather_coalesced([[z(2)], [z(2)]], [z(2)]),
        "allgather_into_tensor_coalesced": lambda: group.allgather_into_tensor_coalesced([z(4)], [z(2)]),
        "all_gather_single_coalesced": lambda: group.all_gather_single_coalesced([z(4)], [z(2)]),
        "gather": lambda: group.gather([[z(2), z(2)]] if root else [], [z(2)], dist.GatherOptions()),
        "scatter": lambda: group.scatter([z(2)], [[z(2), z(2)]] if root else [], dist.ScatterOptions()),
        "reduce_scatter": lambda: group.reduce_scatter([z(2)], [[z(2), z(2)]]),
        "_reduce_scatter_base": lambda: group._reduce_scatter_base(z(2), z(4)),
        "reduce_scatter_single": lambda: group.reduce_scatter_single(z(2), z(4)),
        "reduce_scatter_tensor_coalesced": lambda: group.reduce_scatter_tensor_coalesced([z(2)], [z(4)]),
        "reduce_scatter_single_coalesced": lambda: group.reduce_scatter_single_coalesced([z(2)], [z(4)]),
        "alltoall": lambda: group.alltoall([z(2), z(2)], [z(2), z(2)]),
        "alltoall_base": lambda: group.alltoall_base(z(4), z(4), [], []),
        "all_to_all_single": lambda: group.all_to_all_single(z(4), z(4), [], []),
        "barrier": lambda: group.barrier(),
        "monitored_barrier": lambda: group.monitored_barrier(),
    }


# c10d's wrapper does not check these, so that it prints no OpType for them.
UNCHECKED = {"allgather_into_tensor_coalesced", "all_gather_single_coalesced", "monitored_barrier"}


def spellings(group: Any) -> list[str]:
    return [name for name in calls(group) if hasattr(torch._C._distributed_c10d.ProcessGroup, name)]


def profiling_names() -> dict[str, str]:
    """What Flight Recorder calls each method."""
    found = {}
    group = dist.group.WORLD
    for name in spellings(group):
        work = calls(group)[name]()
        if work is not None:
            work.wait()
        found[name] = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"][-1]["profiling_name"]
    return found


def op_types() -> dict[str, str]:
    """What c10d's own wrapper calls each method, when rank 1 calls something else."""
    found = {}
    for name in spellings(dist.group.WORLD):
        if name in UNCHECKED:
            continue
        group = dist.new_group(timeout=timedelta(seconds=20))
        mine = name if dist.get_rank() == 0 else "allreduce" if name == "barrier" else "barrier"
        text = ""
        try:
            calls(group)[mine]().wait()
        except RuntimeError as error:
            text = str(error)
        found[name] = "".join(re.findall(r"Rank 0 is running collective: .*?OpType=(\w+)", text)[:1])
    return found


def messages() -> list[str]:
    """What went wrong with sends and receives of any dtype and size, by rank, by tag and from any rank."""
    group: Any = dist.group.WORLD
    wrong = []
    for place, dtype in enumerate((torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64)):
        for count in (0, 1, 5):
            value = torch.arange(count).to(dtype)
            if dist.get_rank() == 1:
                group.send([value], 0, place).wait()
                group.send([value], 0, place).wait()
                continue
            for from_anyone in (False, count > 0):
                got = torch.zeros_like(value)
                work = group.recv_anysource([got], place) if from_anyone else group.recv([got], 1, place)
                work.wait()
                if not torch.equal(got, value):
                    wrong.append(f"{dtype} {count}: {got}")
    return wrong


def answer_of(ranks: Any, question: Callable[[], object], **environment: str) -> Any:
    """What two real Gloo ranks, started with this environment, answer; rank 0 speaks."""
    return ranks(lambda rank: question(), mode=None, **environment)[0]


@pytest.mark.slow
@pytest.mark.gloo
def test_flight_recorder_prints_gloos_collectives_as_the_table_says(ranks: Any) -> None:
    printed = answer_of(ranks, profiling_names, TORCH_FR_BUFFER_SIZE="100")
    assert set(printed) == {name for name in printed if METHODS[name][0].kind is not Kind.POINT_TO_POINT}
    for method, profiled in printed.items():
        spec = METHODS[method][0]
        backend, _, name = profiled.partition(":")
        assert backend == "gloo"
        assert name in {GLOO.profiled_as.get(spec.name, "")} | set(spec.profiling), f"{method}: {profiled}"
        if spec.name in GLOO.profiled_as:
            assert name == GLOO.profiled_as[spec.name], method


@pytest.mark.slow
@pytest.mark.gloo
def test_op_types_are_those_of_c10ds_own_wrapper(ranks: Any) -> None:
    printed = answer_of(ranks, op_types, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert len(printed) >= 15
    assert printed == {method: METHODS[method][1].op_type for method in printed}


@pytest.mark.slow
@pytest.mark.gloo
def test_messages_of_any_dtype_arrive_as_they_were_sent(ranks: Any) -> None:
    assert answer_of(ranks, messages) == []
