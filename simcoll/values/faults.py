"""Wrong results for scenarios and tests: what a call brings is altered before anything has seen it, as a broken link or
backend would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from simcoll.core.rank_local import RankLocal

Alter: TypeAlias = Callable[[Sequence[Any]], None]
"""Changes the output buffers of a call in place: tensors or arrays."""

_due: RankLocal[list[Alter]] = RankLocal(list)


def alter_next_result(alter: Alter) -> None:
    """Have the result of this rank's next call whose values are checked altered."""
    _due.here.append(alter)


def apply_due(buffers: Sequence[Any]) -> None:
    """Alter a result, where that is due."""
    if due := _due.here:
        due.pop(0)(buffers)


def double_an_element(buffers: Sequence[Any]) -> None:
    """Double the middle element of the first buffer that has one, as a flipped bit of its exponent would."""
    for buffer in buffers:
        if size := len(flat := buffer.reshape(-1)):
            flat[size // 2] *= 2
            return
