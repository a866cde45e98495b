"""NCCL's overlay: what it refuses, what it runs as other algorithms, in which lanes messages go."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from simcoll.backends.base import OF_THE_GROUP, OF_THE_PAIR, Backend
from simcoll.backends.gloo import GLOO
from simcoll.backends.nccl import DTYPES, NCCL, NCCL2, NCCL_LAZY, configured
from simcoll.backends.registry import KNOWN, known
from simcoll.spec.call import SPARSE, UNEQUAL, Buffer, Call
from simcoll.spec.collectives import COLLECTIVES, METHODS
from simcoll.spec.table import Kind

EVERY = (NCCL, NCCL2, NCCL_LAZY)


def flat(*shape: int, dtype: str = "float32", order: tuple[int, ...] | None = None) -> Buffer:
    return Buffer(shape, dtype, "cuda", 0, order)


def reduced(op: str | None = "sum", dtype: str = "float32", spelling: str = "allreduce") -> Call:
    row = METHODS[spelling][0].name
    return Call(row, spelling, (flat(2, dtype=dtype),), (flat(2, dtype=dtype),), op, root=0)


REFUSED = [
    (reduced("bor", "int32"), "NCCL has no bor"),
    (reduced("band", "bool"), "NCCL has no band"),
    (reduced("avg", "bool"), "avg is not defined for bool"),
    (reduced("premul_sum", "int32"), "NCCL has no premul_sum for int32"),
    (reduced("sum", "float8_e4m3fnuz"), "as bytes and cannot reduce it"),
    (reduced("sum", "int16"), "NCCL has no int16"),
    (reduced("sum", "uint32"), "NCCL has no uint32"),
    (reduced("sum", "float8_e8m0fnu"), "NCCL has no float8_e8m0fnu"),
    (reduced("product", "complex64"), "not defined for complex64"),
    (replace(reduced(), form=SPARSE), "dense tensors only"),
    (Call("all_gather", "_allgather_base", (flat(2, dtype="complex64"),), (flat(4, dtype="complex64"),)), "complex64"),
    (Call("send", "send", (flat(2, dtype="int16"),), peer=1), "NCCL has no int16"),
    (Call("recv", "recv_anysource", (), (flat(2),), peer=-1), "name the source"),
    (Call("monitored_barrier", "monitored_barrier"), "NCCL has no monitored_barrier"),
    (Call("gather", "gather", (flat(2),), (flat(2), flat(1, 2)), root=0), "like its own float32[2], got float32[1, 2]"),
    (Call("scatter", "scatter", (flat(2), flat(2, dtype="int64")), (flat(2),), root=0), "got int64[2]"),
    (Call("broadcast", "broadcast", (flat(2, 3, order=(1, 0)),), root=0), "needs contiguous inputs"),
    (Call("all_reduce", "allreduce", (flat(2, 3, 4, 5, order=(3, 2, 1, 0)),), (), "sum"), "in order (3, 2, 1, 0)"),
    (Call("all_gather", "_allgather_base", (flat(2),), (flat(4, dtype="int32"),)), "tensors of one dtype, got float32"),
    (
        Call("all_reduce", "allreduce_coalesced", (flat(2), flat(2, dtype="int64")), (), "sum", coalesced=True),
        "tensors of one dtype, got float32, int64",
    ),
    (Call("broadcast", "broadcast", (flat(1),), (), root=2), "root 2 is not a rank of a group of 2"),
]


@pytest.mark.parametrize("backend", EVERY, ids=lambda backend: backend.name)
@pytest.mark.parametrize(("call", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_refusal_says_why(backend: Backend, call: Call, reason: str) -> None:
    assert reason in (backend.refusal(call, 0, 2) or "")


ACCEPTED = [
    reduced("avg", "int32"),
    reduced("sum", "bool"),
    reduced("premul_sum", "bfloat16"),
    reduced("sum", "float8_e4m3fn"),
    reduced("sum", "complex64"),
    reduced("sum", "complex128", "reduce"),
    reduced("max", "float8_e5m2fnuz", "reduce"),
    Call("all_gather", "allgather", (flat(1),), (flat(1), flat(2))),
    Call("reduce_scatter", "reduce_scatter", (flat(1), flat(2)), (flat(1),), "sum"),
    Call("all_gather", "_allgather_base", (flat(3),), (flat(2, 3),)),
    Call("all_to_all", "alltoall", (flat(1), flat(2)), (flat(3), flat(0))),
    Call("gather", "gather", (flat(2),), (), root=1),
    Call("scatter", "scatter", (), (flat(2),), root=1),
    Call("all_reduce", "allreduce", (flat(2, 3, 4, 5, order=(0, 2, 3, 1)),), (), "sum"),
    Call("all_reduce", "allreduce", (flat(1, 3, 4, 5, order=(1, 2, 0)),), (), "sum"),
    Call("send", "send", (flat(3, 2, order=(1, 0)),), peer=1, tag=-3),
    Call("send", "send", (flat(3, dtype="float8_e5m2fnuz"),), peer=1, tag=7),
    Call("barrier", "barrier"),
]


@pytest.mark.parametrize("backend", EVERY, ids=lambda backend: backend.name)
@pytest.mark.parametrize("call", ACCEPTED, ids=lambda call: f"{call.spelling}-{call.reduce_op}")
def test_what_nccl_does_is_not_refused(backend: Backend, call: Call) -> None:
    assert backend.refusal(call, 0, 2) is None


def test_coalesced_lists_are_new() -> None:
    call = Call("all_gather", "allgather_coalesced", (flat(2),), (flat(2), flat(2)), coalesced=True)
    assert "allgather_coalesced" in (NCCL.refusal(call, 0, 2) or "")
    assert NCCL2.refusal(call, 0, 2) is None


def test_every_dtype_can_be_sent() -> None:
    for dtype in DTYPES:
        assert NCCL.refusal(Call("send", "send", (flat(1, dtype=dtype),), peer=1), 0, 2) is None


FORMS = [
    (Call("all_gather", "allgather", (flat(2),), (flat(2), flat(2))), None, "list"),
    (Call("all_gather", "allgather", (flat(2),), (flat(2), flat(3))), UNEQUAL, "list"),
    (Call("all_gather", "allgather", (flat(2, 3),), (flat(2, 3), flat(3, 2))), UNEQUAL, "list"),
    (Call("all_gather", "_allgather_base", (flat(2),), (flat(4),)), None, "tensor"),
    (Call("reduce_scatter", "reduce_scatter", (flat(2), flat(3)), (flat(2),), "sum"), UNEQUAL, "list"),
    (Call("reduce_scatter", "_reduce_scatter_base", (flat(4),), (flat(2),), "sum"), None, "tensor"),
    (Call("all_to_all", "alltoall", (flat(1), flat(2)), (flat(3), flat(0))), None, None),
    (Call("all_to_all", "all_to_all_single", (flat(4),), (flat(4),)), None, None),
    (Call("gather", "gather", (flat(2),), (flat(2), flat(2)), root=0), None, None),
]


@pytest.mark.parametrize(("call", "stock", "newer"), FORMS)
def test_ranks_must_agree_on_what_does_not_meet(call: Call, stock: str | None, newer: str | None) -> None:
    assert NCCL.formed(call).form == stock
    assert NCCL2.formed(call).form == newer
    assert NCCL_LAZY.formed(call).form == newer


def test_lists_that_are_unequal_on_some_ranks_only_are_a_finding() -> None:
    from simcoll.core.record import Group, Record, Source
    from simcoll.verifier.agreement.compare import compare

    source = Source("train.py", 1, "step", "")
    even = Call("all_gather", "allgather", (flat(2, 3),), (flat(2, 3), flat(2, 3)))
    uneven = Call("all_gather", "allgather", (flat(3, 2),), (flat(2, 3), flat(3, 2)))
    records = {rank: Record("0", 1, NCCL.formed(call), source) for rank, call in enumerate((even, uneven))}
    [finding, *_] = compare(Group("0", "default_pg", (0, 1)), records, strict=True)
    assert finding.code == "SC601"
    assert "rank 1 has tensors of several shapes" in finding.message
    assert "rank 0 has tensors of one shape" in finding.message


@pytest.mark.parametrize(
    ("backend", "bound", "alone"),
    [
        (NCCL, False, OF_THE_PAIR),
        (NCCL, True, OF_THE_GROUP),
        (NCCL2, False, OF_THE_GROUP),
        (NCCL2, True, OF_THE_GROUP),
        (NCCL_LAZY, True, OF_THE_PAIR),
    ],
)
def test_messages_go_over_one_communicator_or_another(backend: Backend, bound: bool, alone: int) -> None:
    made = configured(backend, {}, bound=bound)
    for tag in (None, 0, 7):
        assert made.channel(tag, batched=False) == alone
        assert made.channel(tag, batched=True) == OF_THE_GROUP
    assert GLOO.channel(7, batched=True) == GLOO.channel(7, batched=False) == 7


@pytest.mark.parametrize(
    ("environment", "blocks"),
    [
        ({}, False),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, True),
        ({"TORCH_NCCL_BLOCKING_WAIT": "Yes"}, True),
        ({"NCCL_BLOCKING_WAIT": "true"}, True),
        ({"TORCH_NCCL_BLOCKING_WAIT": "0", "NCCL_BLOCKING_WAIT": "1"}, False),
    ],
)
def test_the_environment_says_whether_a_wait_blocks(environment: dict[str, str], blocks: bool) -> None:
    for name in KNOWN:
        backend = known(name, environment, bound=False)
        assert backend is not None
        assert backend.waits_on_host == (blocks or name == "gloo")
        assert backend.resumes == (name == "gloo")
    assert known("fake", environment, bound=False) is None


def test_the_tables_name_methods_of_the_spec() -> None:
    for backend, (op, spellings) in product(EVERY, list(NCCL2.forms.items())):
        assert op in COLLECTIVES
        assert set(spellings) <= {method.name for method in COLLECTIVES[op].methods}
        assert set(backend.profiled_as) <= set(METHODS)


def test_no_form_is_given_to_messages() -> None:
    for name, spec in COLLECTIVES.items():
        if spec.kind is Kind.POINT_TO_POINT:
            assert all(name not in backend.forms for backend in EVERY)
