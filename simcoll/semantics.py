"""What each collective computes, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.call import Call

Array: TypeAlias = npt.NDArray[Any]
Result: TypeAlias = Callable[[Sequence[Call], Sequence[Sequence[Array]]], "list[list[Array | None]]"]


def all_reduce(calls: Sequence[Call], inputs: Sequence[Sequence[Array]]) -> list[list[Array | None]]:
    """Every rank gets the reduction over all ranks."""
    return [[np.sum([x[0] for x in inputs], axis=0)] for _ in calls]


broadcast = reduce = all_gather = gather = scatter = reduce_scatter = all_to_all = barrier = point_to_point = all_reduce
