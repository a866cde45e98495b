"""The memory that a call uses, and whether two calls use the same."""

from __future__ import annotations

from typing import NamedTuple

import torch

_PLAIN = torch.Tensor.__torch_dispatch__
"""What a tensor subclass replaces that is only a face of other tensors."""


class Region(NamedTuple):
    """The bytes ``start`` to ``end`` of a storage that a tensor spans; ``dense`` says that it uses all of them.

    ``layout`` tells tensors apart that use other bytes of one span. A storage is named by its address in C++, which is
    its own as long as anybody holds it. A tuple, because one is made for each tensor of each asynchronous call.
    """

    storage: int
    start: int
    end: int
    dense: bool
    layout: tuple[object, ...]
    writes: bool

    def overlaps(self, other: Region) -> bool:
        """Whether both use a byte that one of them writes; False where that cannot be told."""
        if self.storage != other.storage or not (self.writes or other.writes):
            return False
        if self.dense and other.dense:
            return self.start < other.end and other.start < self.end
        # Interleaved columns share their span and no byte; only the very same ones are sure to.
        return self.layout == other.layout


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a storage of its own kind, and has elements there."""
    if type(tensor) is not torch.Tensor and type(tensor).__torch_dispatch__ is not _PLAIN:
        return False
    return tensor.layout is torch.strided and tensor.numel() > 0


def region_of(tensor: torch.Tensor, storage: int, *, writes: bool) -> Region:
    """The region of a tensor that has memory; ``storage`` is the address of its storage."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.is_contiguous():
        return Region(storage, start, start + tensor.numel() * size, True, (), writes)
    layout = (start, tensor.shape, tensor.stride(), size)
    return Region(storage, start, start + _span(tensor) * size, False, layout, writes)


def _span(tensor: torch.Tensor) -> int:
    return 1 + int(sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)))
