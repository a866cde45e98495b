"""Wrong results for scenarios and tests: a call's result is altered before anything has seen it, as by a broken link or
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from simcoll.core.rank_local import RankLocal

Alter: TypeAlias = Callable[[Sequence[Any]], None]
"""Changes the output buffers of a call in place: tensors or arrays."""


class DueFaults:
    """The faults of one rank's next results, in order."""

    def __init__(self) -> None:
        self._due: list[Alter] = []

    def add(self, alter: Alter) -> None:
        """Have the result of the next call whose values are checked altered."""
        self._due.append(alter)

    def apply(self, buffers: Sequence[Any]) -> None:
        """Alter a result, where that is due."""
        if self._due:
            self._due.pop(0)(buffers)


due_faults = RankLocal(DueFaults)
"""Those of ranks that call torch. A simulated rank's result may arrive in another rank's thread: it has its own."""


def double_an_element(buffers: Sequence[Any]) -> None:
    """Double the middle element of the first buffer that has one, as a flipped bit of its exponent would."""
    for buffer in buffers:
        if size := len(flat := buffer.reshape(-1)):
            flat[size // 2] *= 2
            return
