"""Lets FSDP2 make only the shards that a rank uses: of hundreds, its own one and the size of the first.

Where tensors have no memory, a rank of a large job would spend most of its time on the others.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import overload

import torch

from simcoll.core.patches import Patches

_MODULES = tuple(f"torch.distributed.fsdp._fully_shard.{name}" for name in ("_fsdp_common", "_fsdp_param"))


class LazyShards(Sequence[torch.Tensor]):
    """The chunks of ``torch.chunk``, followed by empty tensors up to ``count``; each is made when it is read."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, count, dim

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, place: slice) -> list[torch.Tensor]: ...

    def __getitem__(self, place: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._count))]
        if not -self._count <= place < self._count:
            raise IndexError(f"shard {place} of {self._count}")
        size = self._tensor.size(self._dim)
        each = -(-size // self._count)
        begin = place % self._count * each
        if begin >= size and place % self._count:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, min(each, size - begin))


def use_lazy_shards(patches: Patches) -> None:
    """Replace FSDP2's function, where this torch has it."""
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            patches.replace(importlib.import_module(name), "_chunk_with_empty", LazyShards)
