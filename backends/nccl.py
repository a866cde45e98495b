"""The limits of NCCL, and how it runs the calls that it supports, as torch 2.11 to 2.15 use it.

Torch has three NCCL backends. ``ProcessGroupNCCL`` is named ``nccl``. From 2.15 on, a program that asks for ``nccl``
gets ``nccl2`` instead, another implementation, unless TORCH_DIST_USE_NCCL2=0 is set; ``nccl-lazy`` is the same with a
communicator for each pair of ranks. Sources: ProcessGroupNCCL.cpp (named by function below), NCCLUtils.hpp
(``ncclDataType``) and torch/csrc/cuda/nccl.cpp for the first, c10d/nccl2/ProcessGroupNCCL.cpp and
ProcessGroupNCCLUtils.cpp for the others.

A call on CPU tensors is refused above them, by the dispatcher ("No backend type associated with device type cpu").
Tags are ignored (``send``, ``recv``), a 0-d or stacked output of all_gather is as good as a concatenated one, and
ranks may gather and scatter lists of unequal buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from simcoll.backends.base import Backend, Limit
from simcoll.spec.call import SPARSE, UNEQUAL, Buffer, Call
from simcoll.spec.collectives import COLLECTIVES

_BLOCKING_WAIT = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
"""The variables that make ``wait`` block the host (source: ProcessGroupNCCL.hpp); the first takes precedence."""

_FLOAT8 = frozenset({"float8_e5m2", "float8_e4m3fn"})
_FLOAT8_AS_BYTES = frozenset({"float8_e5m2fnuz", "float8_e4m3fnuz"})

DTYPES = (
    _FLOAT8
    | _FLOAT8_AS_BYTES
    | frozenset({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"})
)
"""The dtypes of NCCL, sends and receives included (``ncclDataType``)."""

_COMPLEX = frozenset({"allreduce", "broadcast", "reduce"})
"""The methods that view complex numbers as real ones; for most others torch.distributed does so above the group."""

_SCALED = frozenset({"float64", "float32", "float16", "bfloat16"})
"""The dtypes of premul_sum (``getNcclReduceOp``)."""

_BITWISE = frozenset({"band", "bor", "bxor"})

_ROOTS_LIST = MappingProxyType({"gather": ("outputs", "inputs"), "scatter": ("inputs", "outputs")})
"""Rows whose root has one buffer per rank, each of the size of its own (``assertTypeAndSizesMatch``)."""

_CONTIGUOUS = MappingProxyType(
    {
        "allreduce": ("inputs",),
        "broadcast": ("inputs",),
        "reduce": ("inputs",),
        "allgather": ("inputs",),
        "_allgather_base": ("inputs", "outputs"),
        "all_gather_single": ("inputs", "outputs"),
        "gather": ("inputs",),
        "reduce_scatter": ("outputs",),
        "alltoall": ("inputs", "outputs"),
        "alltoall_base": ("inputs", "outputs"),
        "all_to_all_single": ("inputs", "outputs"),
    }
)
"""The buffers of each method that must be contiguous (``check_gpu_single_tensor``)."""

_CHANNELS_LAST = MappingProxyType({4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)})
"""The other memory orders that count as contiguous, by number of dimensions."""

_ONE_DTYPE = frozenset({"_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single"})


def _dtype(call: Call, group_rank: int, group_size: int) -> str | None:
    for buffer in (*call.inputs, *call.outputs):
        if buffer.dtype.startswith("complex"):
            if call.spelling not in _COMPLEX:
                return f"NCCL's {call.spelling} has no {buffer.dtype}: view it as real numbers"
        elif buffer.dtype not in DTYPES:
            return f"NCCL has no {buffer.dtype}, only {', '.join(sorted(DTYPES))}"
    return None


def _reduction(call: Call, group_rank: int, group_size: int) -> str | None:
    """Source: ``getNcclReduceOp`` and ``isUnsupportedFloat8``, which only reduce does not call."""
    if call.reduce_op is None:
        return None
    if call.reduce_op in _BITWISE:
        return f"NCCL has no {call.reduce_op}: gather the tensors and combine them"
    for buffer in call.inputs:
        if call.reduce_op == "premul_sum" and buffer.dtype not in _SCALED and not buffer.dtype.startswith("complex"):
            return f"NCCL has no premul_sum for {buffer.dtype}, only for {', '.join(sorted(_SCALED))}"
        if call.op != "reduce" and buffer.dtype in _FLOAT8_AS_BYTES:
            return f"NCCL moves {buffer.dtype} as bytes and cannot reduce it"
    return None


def _sparse(call: Call, group_rank: int, group_size: int) -> str | None:
    return "NCCL takes dense tensors only: convert them with to_dense()" if call.form == SPARSE else None


def _equal_parts(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse a root's list whose buffers differ from its own, as ``gather`` and ``scatter`` do."""
    if call.op not in _ROOTS_LIST or (call.root or 0) != group_rank or call.spelling not in ("gather", "scatter"):
        return None
    listed, own = (getattr(call, role) for role in _ROOTS_LIST[call.op])
    for buffer in listed:
        if own and (buffer.shape, buffer.dtype) != (own[0].shape, own[0].dtype):
            return (
                f"NCCL's {call.op} needs {_ROOTS_LIST[call.op][0]} like its own {_text(own[0])},"
                f" got {_text(buffer)}: pad them, or use all_to_all"
            )
    return None


def _text(buffer: Buffer) -> str:
    return f"{buffer.dtype}{list(buffer.shape)}"


def _layout(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse buffers that are not row-major; those with gaps look contiguous here, but NCCL refuses them too."""
    for role in _CONTIGUOUS.get(call.spelling, ()):
        for buffer in getattr(call, role):
            if not _is_contiguous(buffer):
                return f"NCCL's {call.spelling} needs contiguous {role}, got {_text(buffer)} in order {buffer.order}"
    return None


def _is_contiguous(buffer: Buffer) -> bool:
    if buffer.order is None:
        return True
    order = _CHANNELS_LAST.get(len(buffer.shape))
    if order is None:
        return False
    # The order is that of the dimensions longer than one, numbered without the others.
    long = [dimension for dimension in range(len(buffer.shape)) if buffer.shape[dimension] != 1]
    return buffer.order == tuple(long.index(dimension) for dimension in order if dimension in long)


def _one_dtype(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse different dtypes in one call (``check_gpu_tensors_same_device``, ``_allgather_base``)."""
    buffers = call.inputs if call.spelling == "allreduce_coalesced" else ()
    if call.spelling in _ONE_DTYPE:
        buffers = (*call.inputs, *call.outputs)
    dtypes = sorted({buffer.dtype for buffer in buffers})
    return f"NCCL's {call.spelling} needs tensors of one dtype, got {', '.join(dtypes)}" if len(dtypes) > 1 else None


def _without(spellings: frozenset[str], instead: str) -> Limit:
    def limit(call: Call, group_rank: int, group_size: int) -> str | None:
        return f"NCCL has no {call.spelling}: {instead}" if call.spelling in spellings else None

    return limit


_NO_SOURCE = _without(frozenset({"recv_anysource"}), "name the source")
_NO_MONITOR = _without(frozenset({"monitored_barrier"}), "use a Gloo group for it, or barrier")
_NO_COALESCED_LISTS = _without(frozenset({"allgather_coalesced"}), "use all_gather_into_tensor, coalesced")

_LIMITS = (_NO_SOURCE, _NO_MONITOR, _sparse, _dtype, _reduction, _equal_parts, _layout, _one_dtype)

_DIVIDED = MappingProxyType({"all_gather": "outputs", "reduce_scatter": "inputs"})


def _uneven(call: Call) -> str | None:
    """The form of lists of unequal shapes, which run as one ncclBroadcast or ncclReduce per rank, all others as one
    operation (``allgather``, ``reduce_scatter``); the two forms do not match each other.
    """
    if call.coalesced or call.op not in _DIVIDED:
        return None
    shapes = {buffer.shape for buffer in getattr(call, _DIVIDED[call.op])}
    return UNEQUAL if len(shapes) > 1 else None


_LISTS_ONE_BY_ONE = MappingProxyType(
    {
        op: MappingProxyType({one.name: "list" if one.listed else "tensor" for one in COLLECTIVES[op].methods})
        for op in _DIVIDED
    }
)
"""``nccl2`` runs every list, equal or not, as one ncclBroadcast or ncclReduce per rank."""

_PROFILED = MappingProxyType(
    {
        "allreduce_coalesced": "allreduce_coalesced",
        "_allgather_base": "_all_gather_base",
        "all_gather_single": "_all_gather_base",
        "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
        "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base": "_reduce_scatter_base",
        "reduce_scatter_single": "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
        "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
        "gather_single": "gather_single",
        "barrier": "all_reduce_barrier",
    }
)
"""The names after ``nccl:`` in the profiler and in Flight Recorder, where they are not the row's first name."""

# A wait that times out aborts the communicator (`WorkNCCL::wait`), so that short trial waits are not possible.
NCCL = Backend(
    "nccl",
    (*_LIMITS, _NO_COALESCED_LISTS),
    _PROFILED,
    form_of=_uneven,
    resumes=False,
    staged=False,
    # Equal lists are moved as one tensor (`newLikeFlat`), a barrier reduces one of its own.
    allocates=frozenset({"allgather", "reduce_scatter", "barrier"}),
    tagged=False,
    pairs=True,
    on_streams=True,
)
NCCL2 = Backend("nccl2", _LIMITS, forms=_LISTS_ONE_BY_ONE, resumes=False, staged=False, tagged=False, on_streams=True)
NCCL_LAZY = replace(NCCL2, name="nccl-lazy", pairs=True)


_TRUE = frozenset({"y", "yes", "1", "t", "true"})
"""The values of an environment variable that torch takes for true (``getCvarBool`` of c10d/Utils.hpp)."""


def configured(backend: Backend, environment: Mapping[str, str], *, bound: bool) -> Backend:
    """One of these backends, as configured by the variables of ``environment``.

    ``bound`` is True if the group knows its device: ``nccl`` then connects all ranks at once, and keeps no
    communicators for pairs (``eagerConnectSingleDevice``, ``pointToPoint``).
    """
    value = next((environment[name] for name in _BLOCKING_WAIT if name in environment), "")
    pairs = backend.pairs and not (bound and backend.name == NCCL.name)
    return replace(backend, waits_on_host=value.lower() in _TRUE, pairs=pairs)
