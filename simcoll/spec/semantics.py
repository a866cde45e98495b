"""Computes each collective in numpy, for the simulated backend and as the reference in tests of real ones.

Each function takes the calls of all ranks and their input arrays, both by group rank, and gives each rank's outputs in
the order of ``call.outputs``. None is an output that the standard leaves undefined, such as a reduction off its root.
The buffers of an in-place collective are its inputs.

The calls are assumed proved: every rank makes the same statement and the flows agree. Data is a row of elements, as it
is on the wire: pieces arrive in the order of their senders and fill the outputs one after another, so that a list of
outputs, one concatenated tensor and one stacked tensor are the same thing. The arrays are row-major.

Floating-point sums are exact up to rounding, in whatever order a backend adds. float16 is reduced in float32 and
rounded once. numpy has no bfloat16: give float32 and round the result. Complex numbers have no order and no bits, and
torch.distributed multiplies none either. bool adds with "or" and multiplies with "and". The mean of integers is cut
towards zero, as NCCL does; Gloo refuses it. ``premul_sum`` scales by a factor that is each rank's own business and no
part of the call: its inputs are taken as already scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.spec import flows
from simcoll.spec.call import Buffer, Call

Array: TypeAlias = npt.NDArray[Any]
Outputs: TypeAlias = "list[Array | None]"
"""One rank's outputs, in the order of ``call.outputs``."""

Result: TypeAlias = Callable[[Sequence[Call], Sequence[Sequence[Array]]], "list[Outputs]"]
"""Calls and input arrays by group rank -> outputs by group rank."""

_COMBINE = MappingProxyType(
    {
        "sum": np.add,
        "avg": np.add,
        "premul_sum": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
)

REDUCE_OPS = tuple(_COMBINE)
"""The reduce ops of c10d, in lower case."""

_BITWISE = frozenset({"band", "bor", "bxor"})
_LINEAR = frozenset({"sum", "avg", "premul_sum"})


def undefined_reduction(reduce_op: str | None, dtype: str) -> str | None:
    """The reason why a reduce op is undefined for a dtype (a torch name such as ``bfloat16``), or None."""
    if reduce_op not in _COMBINE:
        return f"reduce op {reduce_op} is unknown, expected one of {', '.join(REDUCE_OPS)}"
    if dtype.startswith("complex") and reduce_op not in _LINEAR:
        return f"reduce op {reduce_op} is not defined for {dtype}, only {', '.join(sorted(_LINEAR))}"
    if reduce_op in _BITWISE and "float" in dtype:
        return f"reduce op {reduce_op} is not defined for {dtype}, only for integers and bool"
    if reduce_op in ("avg", "premul_sum") and dtype == "bool":
        return f"reduce op {reduce_op} is not defined for bool"
    return None


def all_reduce(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Every rank gets the reduction over all ranks, buffer by buffer."""
    reduced = _reduce_each(calls[0], inputs)
    return [_shaped(reduced, call.outputs) for call in calls]


def broadcast(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Every rank gets the root's buffers."""
    sent = [_flat(array) for array in inputs[_root(calls)]]
    return [_shaped(sent, call.outputs) for call in calls]


def reduce(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """The root gets the reduction over all ranks; the other ranks' buffers are undefined afterwards."""
    reduced = _reduce_each(calls[0], inputs)
    root = _root(calls)
    return [_shaped(reduced, call.outputs) if rank == root else _undefined(call) for rank, call in enumerate(calls)]


def all_gather(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Every rank gets every rank's input, in rank order; a coalesced call gathers each of its inputs by itself."""
    return [_gathered(call, inputs) for call in calls]


def gather(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """The root gets every rank's input, in rank order."""
    root = _root(calls)
    return [_gathered(call, inputs) if rank == root else _undefined(call) for rank, call in enumerate(calls)]


def scatter(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Rank j gets part j of the root's input."""
    root = _root(calls)
    sent = _cut(inputs[root], flows.parts(calls[root].inputs, None, len(calls)))
    return [_fill([sent[rank]], call.outputs) for rank, call in enumerate(calls)]


def reduce_scatter(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Rank j gets the reduction over all ranks of part j; a coalesced call treats each of its tensors by itself."""
    if calls[0].coalesced:
        reduced = _reduce_each(calls[0], inputs)
        return [
            _shaped([np.split(x, len(calls))[rank] for x in reduced], call.outputs) for rank, call in enumerate(calls)
        ]
    whole = _reduced(calls[0].reduce_op, [_joined(arrays) for arrays in inputs])
    sent = _cut([whole], flows.parts(calls[0].inputs, None, len(calls)))
    return [_fill([sent[rank]], call.outputs) for rank, call in enumerate(calls)]


def all_to_all(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Rank j gets part j of every rank's input, in the order of the senders."""
    sent = [
        _cut(arrays, flows.parts(call.inputs, call.input_splits, len(calls)))
        for call, arrays in zip(calls, inputs, strict=True)
    ]
    return [_fill([pieces[rank] for pieces in sent], call.outputs) for rank, call in enumerate(calls)]


def barrier(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """Nothing is moved: no rank leaves before all have come."""
    return [[] for _ in calls]


def point_to_point(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[Outputs]:
    """A matched pair, the sender first: the receiver's buffer gets the sender's."""
    return [_fill([_joined(inputs[0])], call.outputs) if call.outputs else [] for call in calls]


def _gathered(call: Call, inputs: Sequence[Sequence[Array]]) -> Outputs:
    """One rank's share of a gather: its outputs filled with everybody's inputs."""
    if not call.coalesced:
        return _fill([_joined(arrays) for arrays in inputs], call.outputs)
    if len(call.outputs) == len(call.inputs):
        by_tensor = zip(*inputs, strict=True)
        return _shaped([_joined(pieces) for pieces in by_tensor], call.outputs)
    return _shaped([_flat(array) for arrays in inputs for array in arrays], call.outputs)


def _reduce_each(call: Call, inputs: Sequence[Sequence[Array]]) -> list[Array]:
    """Each tensor of the call, reduced over all ranks, flat."""
    return [_reduced(call.reduce_op, [_flat(array) for array in pieces]) for pieces in zip(*inputs, strict=True)]


def _reduced(reduce_op: str | None, pieces: Sequence[Array]) -> Array:
    stacked = np.stack(pieces)
    dtype = stacked.dtype
    if problem := undefined_reduction(reduce_op, dtype.name):
        raise ValueError(problem)
    combine = _COMBINE[reduce_op or "sum"]
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    # An overflow is infinite or wraps around, on every backend, without a warning.
    with np.errstate(all="ignore"):
        total: Array = combine.reduce(stacked, axis=0, dtype=wide)
        if reduce_op == "avg":
            total = _divided(total, len(pieces))
        return total.astype(dtype)


def _divided(total: Array, ranks: int) -> Array:
    if total.dtype.kind not in "iu":
        quotient: Array = total / ranks
        return quotient
    magnitude = np.abs(total) // ranks
    return np.where(total < 0, -magnitude, magnitude).astype(total.dtype)


def _root(calls: Sequence[Call]) -> int:
    return calls[0].root or 0


def _flat(array: Array) -> Array:
    return np.asarray(array).reshape(-1)


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([_flat(array) for array in arrays])


def _cut(arrays: Sequence[Array], sizes: flows.SparseFlow) -> list[Array]:
    """The arrays as one row of elements, cut into a piece for each peer."""
    ends = np.cumsum([sizes[peer] for peer in range(len(sizes))])
    return np.split(_joined(arrays), ends)[: len(sizes)]


def _fill(pieces: Sequence[Array], buffers: Sequence[Buffer]) -> Outputs:
    """The buffers, filled one after another with the pieces."""
    ends = np.cumsum([buffer.elements for buffer in buffers])
    return _shaped(np.split(_joined(pieces), ends), buffers)


def _shaped(arrays: Sequence[Array], buffers: Sequence[Buffer]) -> Outputs:
    return [array.reshape(buffer.shape).copy() for array, buffer in zip(arrays, buffers, strict=False)]


def _undefined(call: Call) -> Outputs:
    return [None] * len(call.outputs)
