"""Object collectives, built from collectives of arrays as in torch.distributed: sizes first, then bytes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from simcoll.backends.simulated.comm import Comm
from simcoll.spec.semantics import Array


class ObjectComm(Comm):
    """A communicator that also sends objects: anything that can be pickled."""

    def all_gather_object(self, value: object) -> list[Any]:
        """The values of all ranks, in rank order."""
        mine = _packed(value)
        sizes = self._sizes(mine)
        parts = [np.zeros(max(sizes), np.uint8) for _ in sizes]
        self.call("allgather", [_padded(mine, max(sizes))], parts)
        return [_unpacked(part, size) for part, size in zip(parts, sizes, strict=True)]

    def gather_object(self, value: object, root: int = 0) -> list[Any] | None:
        """The values of all ranks, in rank order, on the root; None elsewhere."""
        mine = _packed(value)
        sizes = self._sizes(mine)
        parts = [np.zeros(max(sizes), np.uint8) for _ in sizes] if self.rank == root else []
        self.call("gather", [_padded(mine, max(sizes))], parts, root=root)
        if self.rank != root:
            return None
        return [_unpacked(part, size) for part, size in zip(parts, sizes, strict=True)]

    def broadcast_object_list(self, values: list[Any], root: int = 0) -> None:
        """Send the root's values to all ranks, in place; all lists have the same length."""
        packed = [_packed(value) for value in values] if self.rank == root else []
        sizes = np.array([len(one) for one in packed] or [0] * len(values), np.int64)
        self.call("broadcast", [sizes], [sizes], root=root)
        carried = np.concatenate(packed) if packed else np.zeros(int(sizes.sum()), np.uint8)
        self.call("broadcast", [carried], [carried], root=root)
        if self.rank != root:
            ends = np.cumsum(sizes)
            values[:] = [_unpacked(carried[end - size :], int(size)) for end, size in zip(ends, sizes, strict=True)]

    def scatter_object_list(self, values: Sequence[object] | None = None, root: int = 0) -> Any:
        """The value of this rank in the root's list, which has one per rank."""
        packed = [_packed(value) for value in values or ()] if self.rank == root else []
        largest = np.array([max((len(one) for one in packed), default=0)], np.int64)
        self.call("broadcast", [largest], [largest], root=root)
        mine, size = np.zeros(int(largest[0]), np.uint8), np.zeros(1, np.int64)
        self.call("scatter", [_padded(one, int(largest[0])) for one in packed], [mine], root=root)
        self.call("scatter", [np.array([len(one)], np.int64) for one in packed], [size], root=root)
        return _unpacked(mine, int(size[0]))

    def _sizes(self, mine: Array) -> list[int]:
        sizes = [np.zeros(1, np.int64) for _ in range(self.size)]
        self.call("allgather", [np.array([len(mine)], np.int64)], sizes)
        return [int(size[0]) for size in sizes]


def _packed(value: object) -> Array:
    return np.frombuffer(pickle.dumps(value), np.uint8).copy()


def _padded(packed: Array, size: int) -> Array:
    return np.concatenate([packed, np.zeros(size - len(packed), np.uint8)])


def _unpacked(part: Array, size: int) -> Any:
    # The bytes come from another rank of this process.
    return pickle.loads(part[:size].tobytes())  # noqa: S301
