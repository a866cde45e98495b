"""Checks the arguments of calls: numpy arrays of numbers, whole numbers for ranks, tags and splits, reduce ops."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

import numpy as np

_NO_NUMBERS = "OSUMm"
"""The kinds of numpy dtypes that no communication library supports: objects, texts, dates."""


def check_arrays(arrays: object) -> None:
    """Raise TypeError for anything but a list of arrays of numbers."""
    if not isinstance(arrays, (list, tuple, np.ndarray)):
        raise TypeError(f"expected a list of numpy arrays, got {_kind(arrays)}")
    for array in arrays:
        if not isinstance(array, np.ndarray):
            hint = "" if array is None else "; numpy.asarray makes one"
            raise TypeError(f"expected a numpy array, got {_kind(array)}{hint}")
        if array.dtype.kind in _NO_NUMBERS or array.dtype.names is not None:
            raise TypeError(
                f"expected an array of numbers, got dtype {array.dtype}; the object collectives send others"
            )


def check_reduce_op(reduce_op: object) -> None:
    """Raise TypeError for anything but a name or None."""
    if reduce_op is not None and not isinstance(reduce_op, str):
        raise TypeError(f"expected a reduce op by its name, such as 'sum', got {_kind(reduce_op)}")


def whole_numbers(named: Mapping[str, object]) -> dict[str, int | None]:
    """The numbers as Python's own; raises TypeError for other types."""
    return {name: None if value is None else _whole(name, value) for name, value in named.items()}


def whole_sizes(name: str, sizes: Iterable[object] | None) -> tuple[int, ...] | None:
    """The splits as Python's own numbers; raises TypeError for other types."""
    if sizes is None:
        return None
    if not isinstance(sizes, (list, tuple, np.ndarray)):
        raise TypeError(f"expected {name} as a list of whole numbers, got {_kind(sizes)}")
    return tuple(_whole(name, size) for size in sizes)


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # other types raise TypeError
    except TypeError:
        raise TypeError(f"expected a whole number as {name}, got {_kind(value)}") from None


def _kind(value: object) -> str:
    return "None" if value is None else f"{value!r:.40} of type {type(value).__name__}"
