"""Has FSDP2 cut only the shards that a rank asks for: of hundreds, it takes its own one and the size of the first.

A rank of a large job spends most of its time on the others, where tensors have no memory. It changes the process for
good, and is meant for one that was forked to be a rank of a dry run.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any, overload

import torch

_NAME = "_chunk_with_empty"
_MODULES = tuple(f"torch.distributed.fsdp._fully_shard.{name}" for name in ("_fsdp_common", "_fsdp_param"))


class Shards(Sequence[torch.Tensor]):
    """What ``torch.chunk`` gives, followed by empty tensors up to ``count``; each is made when it is asked for."""

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


def use_lazy_shards() -> None:
    """Replace FSDP2's function, where this torch has it."""
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            module: Any = importlib.import_module(name)
            if hasattr(module, _NAME):
                setattr(module, _NAME, Shards)
