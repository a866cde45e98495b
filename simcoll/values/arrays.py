"""Digests of numpy arrays, for simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.value_laws import judged
from simcoll.values.digests import SideDigest, side_digest

HOST_CHUNK = 1 << 15
"""Elements that are worked on together on a host."""

_Array = npt.NDArray[Any]
_WORDS = {0: np.int64, 4: np.int32, 2: np.int16, 6: np.int16}


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

    def total(self, flat: _Array) -> _Array:
        found: _Array = self.reals(flat).sum()
        return found

    def magnitude(self, flat: _Array) -> _Array:
        found: _Array = np.abs(self.reals(flat)).sum()
        return found

    def largest(self, flat: _Array) -> _Array:
        found: _Array = np.abs(self.reals(flat)).max()
        return found

    def is_known_finite(self, total: _Array) -> bool:
        return bool(np.isfinite(total))

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
    if found.parts is not None:
        values["parts"] = [number(value) for value in found.parts.tolist()]
    return values


def number(value: float) -> float | None:
    """A number as JSON has it: None where it is not finite."""
    return value if isinstance(value, int) or abs(value) < float("inf") else None
