"""The result of a collective on one rank if every rank has the same inputs, computed without the other ranks' parts.

A dry run goes on with these values. They follow from the properties of the call's row (whether it reduces, which
buffers it divides, where its root is) and equal the row's ``result`` where all ranks make the same call with the same
inputs, up to the rounding of sums. Where ranks would send different amounts, this rank's data is repeated or truncated
to the size that it expects. Unknown values are zero: the content of a message, and a part from another root. A
broadcast leaves the buffer unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np

from simcoll.spec import flows
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import Kind, Rooted


def _power(piece: Array, ranks: int) -> Array:
    return piece if piece.dtype.kind == "b" else piece**ranks


def _times(piece: Array, ranks: int) -> Array:
    return piece if piece.dtype.kind == "b" else piece * np.asarray(ranks).astype(piece.dtype)


_REPEATED: MappingProxyType[str, Callable[[Array, int], Array]] = MappingProxyType(
    {
        "sum": _times,
        "premul_sum": _times,
        "product": _power,
        "bxor": lambda piece, ranks: piece if ranks % 2 else piece ^ piece,
    }
)
"""Reductions of equal values; any other reduction returns the value itself."""


def symmetric_outputs(call: Call, group_rank: int, size: int, inputs: Sequence[Array]) -> Outputs:
    """The outputs of ``call`` on a rank in a group of ``size`` ranks with equal ``inputs``; None leaves one unchanged.

    Raises ValueError for a call whose buffers and splits contradict each other.
    """
    spec = spec_of(call)
    undefined = spec.rooted is Rooted.TO_ROOT and call.root != group_rank
    if spec.kind is Kind.SYNCHRONISATION or undefined or not call.outputs:
        return [None] * len(call.outputs)
    if spec.kind is Kind.POINT_TO_POINT or not inputs:
        return [np.zeros(buffer.shape, np.float32) for buffer in call.outputs]
    if call.coalesced:
        one = [array.reshape(-1) for array in inputs]
        return [
            _filled(_piece(call, group_rank, size, one[place % len(one)]), [buffer])[0]
            for place, buffer in enumerate(call.outputs)
        ]
    row = inputs[0].reshape(-1) if len(inputs) == 1 else np.concatenate([array.reshape(-1) for array in inputs])
    return _filled(_piece(call, group_rank, size, row), call.outputs)


def is_from_other_root(call: Call, group_rank: int) -> bool:
    """Whether the call brings this rank the data of another rank, the root."""
    return spec_of(call).rooted is Rooted.FROM_ROOT and call.root != group_rank


def _piece(call: Call, group_rank: int, size: int, row: Array) -> Array:
    """The contribution of each rank to this rank's outputs."""
    spec = spec_of(call)
    if "inputs" in spec.divided:
        row = _part(call, group_rank, size, row)
    if spec.kind is Kind.REDUCTION:
        with np.errstate(all="ignore"):
            repeated = _REPEATED.get(call.reduce_op or "sum")
            row = row if repeated is None else repeated(row, size)
    return row


def _part(call: Call, group_rank: int, size: int, row: Array) -> Array:
    if call.coalesced:
        return np.split(row, size)[group_rank]
    sizes = flows.parts(call.inputs, call.input_splits, size)
    begin = sum(sizes[peer] for peer in range(group_rank))
    return row[begin : begin + sizes[group_rank]]


def _filled(piece: Array, buffers: Sequence[Buffer]) -> Outputs:
    """The buffers in order, filled with the piece, repeated as needed."""
    ends = np.cumsum([buffer.elements for buffer in buffers])
    row = piece if len(piece) == ends[-1] else np.resize(piece, int(ends[-1]))
    return [part.reshape(buffer.shape) for part, buffer in zip(np.split(row, ends), buffers, strict=False)]
