"""The memory that a call uses, and whether two calls use the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from simcoll.call import Call
from simcoll.spec import spec_of


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes ``start`` to ``end`` of a storage that a tensor spans; ``dense`` says that it uses all of them.

    ``layout`` tells tensors apart that use other bytes of one span. A storage is named by its address in C++, which is
    its own as long as anybody holds it.
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


def regions_of(call: Call, group_rank: int, tensors: Mapping[str, Sequence[torch.Tensor]]) -> tuple[Region, ...]:
    """The regions of a call's tensors, by role; none where a tensor has no memory of its own kind."""
    return tuple(_regions(call, group_rank, tensors))


def _regions(call: Call, group_rank: int, tensors: Mapping[str, Sequence[torch.Tensor]]) -> Iterator[Region]:
    in_place = spec_of(call).brings_result(call, group_rank)
    for role, members in tensors.items():
        writes = role == "outputs" or (role == "inout" and in_place)
        for tensor in members:
            if type(tensor).__torch_dispatch__ is _PLAIN and tensor.layout is torch.strided and tensor.numel():
                yield _region(tensor, writes)


_PLAIN = torch.Tensor.__torch_dispatch__
"""What a tensor subclass replaces that is only a face of other tensors."""


def _region(tensor: torch.Tensor, writes: bool) -> Region:
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    dense = tensor.is_contiguous()
    span = tensor.numel() if dense else _span(tensor)
    layout = () if dense else (start, tensor.shape, tensor.stride(), size)
    return Region(tensor.untyped_storage()._cdata, start, start + span * size, dense, layout, writes)


def _span(tensor: torch.Tensor) -> int:
    return 1 + int(sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)))
