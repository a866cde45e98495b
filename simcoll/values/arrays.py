"""Digests of numpy arrays, for simulated ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.value_laws import SUMMED_BLOCK, judged, signs
from simcoll.values.digests import SideDigest, side_digest
from simcoll.values.folding import ROW

HOST_CHUNK = SUMMED_BLOCK
"""Integers that are worked on together on a host: all that is made of them fits its caches."""

_Array = npt.NDArray[Any]
_WORDS = {0: np.int64, 4: np.int32, 2: np.int16, 6: np.int16}


@functools.cache
def host_signs() -> _Array:
    """The signs of the elements of a block, as float64."""
    bits = np.frombuffer(signs(), np.uint8)
    return np.unpackbits(bits) * 2.0 - 1.0


class _Numpy:
    """numpy, as a :class:`~simcoll.values.digests.Library`."""

    def words(self, flat: _Array, rows: int) -> _Array:
        width = _WORDS.get(flat.nbytes // rows % 8, np.uint8)
        return flat.view(width).astype(np.int64).reshape(rows, -1)

    def integers(self, flat: _Array, rows: int = 1) -> _Array:
        return flat.astype(np.int64).reshape(rows, -1)

    def reals(self, flat: _Array) -> _Array:
        parts = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
        return parts.astype(np.float64)

    def working(self, flat: _Array) -> _Array:
        parts = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
        return parts.astype(np.float32) if parts.dtype.itemsize < 4 else parts

    def double(self, real: _Array) -> _Array:
        return real.astype(np.float64)

    def together(self, real: _Array) -> _Array:
        found: _Array = real.sum(1).astype(np.float64)
        return found

    def signs(self, count: int, like: _Array) -> _Array:
        return host_signs()[:count]

    def weighed(self, table: _Array, weights: _Array) -> _Array:
        found: _Array = table @ weights
        return found

    def squares(self, real: _Array, rows: int) -> _Array:
        table = real.reshape(rows, -1)
        starts = range(0, table.shape[1], SUMMED_BLOCK)
        parts = [[np.dot(part, part) for part in (row[at : at + SUMMED_BLOCK] for at in starts)] for row in table]
        found: _Array = np.array(parts, np.float64).reshape(rows, -1).sum(1)
        return found

    def largest(self, flat: _Array) -> _Array:
        found: _Array = np.abs(self.reals(flat)).max()
        return found

    def lines(self, flat: _Array) -> tuple[_Array, _Array]:
        flat = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
        whole = flat.shape[0] - flat.shape[0] % (ROW * 8 // flat.itemsize)
        words = np.ascontiguousarray(flat[:whole]).view(np.uint8)
        # A view of other elements has to begin at one of them.
        words = words if words.ctypes.data % 8 == 0 else words.copy()
        return words.view(np.int64).reshape(-1, ROW), flat[whole:]

    def total(self, real: _Array) -> _Array:
        found: _Array = real.sum()
        return found

    def is_known_finite(self, sums: _Array) -> bool:
        return bool(np.isfinite(sums).all())

    def chunk(self, like: _Array) -> int:
        return HOST_CHUNK

    def odd(self, count: int, like: _Array) -> _Array:
        return np.arange(1, 2 * count, 2, dtype=np.int64)

    def row(self, numbers: Sequence[int], like: _Array) -> _Array:
        return np.array(numbers, np.uint64).view(np.int64)

    def joined(self, parts: Sequence[_Array]) -> _Array:
        return np.concatenate([np.atleast_1d(part) for part in parts])

    def product(self, row: _Array) -> _Array:
        found: _Array = row.prod(dtype=np.int64)
        return found


_NUMPY = _Numpy()


def digest_arrays(
    call: Call, group_rank: int, group_size: int, sequence: int, arrays: Sequence[_Array], *, sent: bool
) -> dict[str, object] | None:
    """The digest of the arrays that a rank sends (has received) as JSON values; None where the row has no law."""
    if not applies(call, group_rank, sent=sent) or any(array.dtype.kind not in "biufc" for array in arrays):
        return None
    with np.errstate(all="ignore"):
        rows = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        found = side_digest(call, group_rank, group_size, sequence, rows, _NUMPY, sent=sent)
    return None if found is None else document(found)


def applies(call: Call, group_rank: int, *, sent: bool) -> bool:
    """True if this rank has values of a side that a law is about."""
    spec = spec_of(call)
    if spec.values is None or not judged(spec.values, call):
        return False
    return spec.sends_inputs(call, group_rank) if sent else spec.receives(call, group_rank)


def document(found: SideDigest) -> dict[str, object]:
    """A digest that is on the host as JSON values."""
    values: dict[str, object] = {name: number(value.item()) for name, value in found.numbers.items()}
    if found.points:
        values["points"] = [[number(value) for value in point.tolist()] for point in found.points]
    for name, parts in (("parts", found.parts), ("squared_parts", found.squared_parts)):
        if parts is not None:
            values[name] = [number(value) for value in parts.tolist()]
    return values


def number(value: float) -> float | None:
    """A number as JSON has it: None where it is not finite."""
    return value if isinstance(value, int) or abs(value) < float("inf") else None
