"""The distinct rows of columns of small numbers, such as those of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_SPARSE = 4
"""So many times as many numbers as rows may there be for a table of them all."""


def distinct_rows(
    columns: Sequence[npt.NDArray[Any]],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The first place of each distinct row of these columns, the number of such rows, and which of them each row is.

    Columns hold numbers from zero on, and have at least one row; the distinct rows are in ascending order.
    """
    keys = columns[0].astype(np.int64)
    size = int(keys.max()) + 1
    for column in columns[1:]:
        width = int(column.max()) + 1
        if size * width >= 1 << 62:
            # Numbers for the rows so far, of which there are no more than rows.
            keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
            size = int(keys.max()) + 1
        keys = keys * width + column
        size *= width
    if size > _SPARSE * len(keys):
        _, first, kind, often = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        return first, often, kind
    # Small numbers are told apart by a table of them all, without sorting; of equal ones the last put there stays.
    counts = np.bincount(keys, minlength=size)
    used = np.flatnonzero(counts)
    table = np.zeros(size, np.intp)
    table[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)
    first = table[used]
    table[used] = np.arange(len(used))
    return first, counts[used], table[keys]
