"""The limits of Gloo, found by trying rows, reduce ops, dtypes and forms on torch 2.13 (tests/backends/test_gloo.py).

Gloo does not refuse all of it cleanly: a 0-d output of reduce_scatter_single ends the process
with a segmentation fault, and a buffer that does not divide evenly loses its remainder in silence. A rank that is
refused alone (the root of an uneven gather) takes no tag, and is out of step with its group from then on: the next
collective of that group never completes.

:data:`_MEMORY` has the methods whose tensors Gloo takes for contiguous without a word: of a tensor with gaps
(``m[:, 0]``, ``x[::2]``) it takes the first elements in memory, gaps included, and it writes to the gaps; of an
expanded tensor it takes the memory behind it. Methods that are not listed copy such tensors, or refuse them.
"""

from __future__ import annotations

from types import MappingProxyType

from simcoll.backends.base import EACH_RANK, Backend, MemoryUse, negative_tag
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import COLLECTIVES, spec_of
from simcoll.spec.table import IN_PLACE, Kind

DTYPES = frozenset(
    {
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int8",
        "uint8",
        "bool",
        "complex64",
        "complex128",
    }
)
"""The dtypes of Gloo's collectives; send and receive take any dtype, as bytes."""

_COMPLEX = frozenset({"all_reduce", "broadcast", "reduce", "reduce_scatter"})
"""The rows that take complex numbers; for the others, except gather, torch.distributed views them as real ones."""

_LISTS = frozenset({"allgather", "allgather_coalesced", "reduce_scatter"})
"""The spellings that take a list with one buffer per rank, where others take one tensor for all parts."""

_REDUCE_SCATTER = tuple(method.name for method in COLLECTIVES["reduce_scatter"].methods)

_EQUAL_PARTS = frozenset({"all_gather", "gather", "scatter", "all_to_all"})


def _dtype(call: Call, group_rank: int, group_size: int) -> str | None:
    if spec_of(call).kind is Kind.POINT_TO_POINT:
        return None
    for buffer in (*call.inputs, *call.outputs):
        if buffer.dtype not in DTYPES:
            return f"Gloo has no {buffer.dtype} in collectives, only {', '.join(sorted(DTYPES))}"
        if call.op not in _COMPLEX and buffer.dtype.startswith("complex"):
            return f"Gloo's {call.op} has no {buffer.dtype}: view it as real numbers"
    return None


def _empty_message(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse empty tensors from any source: they need a named source."""
    if call.spelling != "recv_anysource" or all(buffer.elements for buffer in call.outputs):
        return None
    return "Gloo receives no empty tensor from any source: name the source"


def _reduce_op(call: Call, group_rank: int, group_size: int) -> str | None:
    if call.reduce_op == "premul_sum":
        return "Gloo has no premul_sum: scale the tensor, then sum"
    if call.reduce_op != "avg":
        return None
    for buffer in call.inputs:
        if buffer.dtype.startswith(("int", "uint")):
            return f"Gloo has no avg for {buffer.dtype}: sum, then divide"
    return None


def _equal_parts(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse lists of unequal buffers, which all_to_all_single with splits and reduce_scatter may have."""
    if call.op not in _EQUAL_PARTS or call.coalesced:
        return None
    for name, buffers in (("output", call.outputs), ("input", call.inputs)):
        if len({buffer.shape for buffer in buffers}) > 1:
            shapes = ", ".join(str(list(buffer.shape)) for buffer in buffers)
            return f"Gloo's {call.op} needs {name}s of one shape, got {shapes}"
    return None


def _along_rows(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse a tensor for all parts that is not concatenated along the first dimension: Gloo has no stacked form."""
    if call.op == "all_gather":
        return _first_mismatch(call, call.outputs, call.inputs, group_size)
    if call.op == "reduce_scatter":
        return _first_mismatch(call, call.inputs, call.outputs, group_size)
    return None


def _first_mismatch(call: Call, divided: tuple[Buffer, ...], single: tuple[Buffer, ...], group_size: int) -> str | None:
    if len(divided) != len(single) or call.spelling in _LISTS:
        return None
    for whole, part in zip(divided, single, strict=True):
        expected = (part.shape[0] * group_size, *part.shape[1:]) if part.shape else None
        if whole.shape != expected:
            return (
                f"Gloo's {call.spelling} takes parts concatenated along the first dimension,"
                f" got {list(whole.shape)} for {group_size} parts of {list(part.shape)}"
            )
    return None


_EXCHANGE = MemoryUse(solid=("outputs",), refuses=("inputs",), in_order=True, apart=True)

_MEMORY = MappingProxyType(
    {
        "allreduce": MemoryUse(solid=IN_PLACE),
        "broadcast": MemoryUse(solid=IN_PLACE),
        "reduce": MemoryUse(solid=IN_PLACE),
        "scatter": MemoryUse(solid=("inputs", "outputs"), in_order=True),
        "reduce_scatter": MemoryUse(solid=("outputs",), in_order=True, apart=True, own_part=True),
        "alltoall_base": _EXCHANGE,
        "all_to_all_single": _EXCHANGE,
    }
)

_COUNTS = MappingProxyType(
    {
        "allreduce": 0,
        "broadcast": 0,
        "reduce": 0,
        "scatter": 0,
        "alltoall_base": 0,
        "all_to_all_single": 0,
        "recv": 0,
        "recv_anysource": 0,
        "allgather": 1,
        "_allgather_base": EACH_RANK,
        "all_gather_single": EACH_RANK,
        "gather": 1,
        "reduce_scatter": 1,
        "_reduce_scatter_base": 1,
        "reduce_scatter_single": 1,
        "alltoall": 1,
    }
)
"""Gloo's own copies count, when one of its threads gets there; what it writes through a pointer does not."""

GLOO = Backend(
    "gloo",
    (_dtype, negative_tag, _empty_message, _reduce_op, _equal_parts, _along_rows),
    # Gloo implements these by another collective.
    MappingProxyType({"reduce_scatter": "all_reduce", "monitored_barrier": "barrier"}),
    # Mixing these ends the process.
    MappingProxyType({"reduce_scatter": {name: "list" if name in _LISTS else "tensor" for name in _REDUCE_SCATTER}}),
    waits_on_host=True,
    # Two threads run a group's calls.
    in_order=False,
    # Their Work learns of its end only in wait (torch 2.13).
    ended_only_by_wait=frozenset({"send", "recv", "reduce_scatter"}),
    memory=_MEMORY,
    counts=_COUNTS,
)
