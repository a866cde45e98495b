"""The memory that a call uses, and whether two calls use the same."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

_MOST_TENSORS = 64
"""Tensors of a call beyond which its memory is not watched."""

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


class Watched(NamedTuple):
    """A tensor that fills its storage, so that its version counter speaks for it alone."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    shape: torch.Size
    address: int

    def changed(self) -> bool:
        """Whether somebody has written to it since; one that got another shape or memory says nothing."""
        tensor = self.tensor()
        if tensor is None or tensor._version == self.version:
            return False
        return tensor.shape == self.shape and tensor.data_ptr() == self.address


class Memory(NamedTuple):
    """What a call uses: the regions, the tensors in which its result arrives, those whose versions speak for them."""

    regions: list[Region]
    written: list[weakref.ref[torch.Tensor]]
    watched: list[Watched]


def memory_of(tensors: Mapping[str, Sequence[torch.Tensor]], *, writes: bool, sends: bool) -> Memory:
    """What a call uses of its tensors, by role; nothing of a call with very many.

    ``writes`` says that its result arrives in them, ``sends`` that a write to an input while it runs can be seen and
    matters.
    """
    memory = Memory([], [], [])
    if sum(map(len, tensors.values())) > _MOST_TENSORS:
        return memory
    outputs: set[int] = set()
    for role, of_role in tensors.items():
        written = writes and role != "inputs"
        for tensor in of_role:
            if not has_memory(tensor):
                continue
            storage = tensor.untyped_storage()
            address = storage._cdata
            memory.regions.append(region_of(tensor, address, writes=written))
            if written:
                memory.written.append(weakref.ref(tensor))
            # A backend counts up the version of what it writes as pure output whenever it likes.
            if role == "outputs":
                outputs.add(address)
            elif sends and address not in outputs and _fills(tensor, storage):
                memory.watched.append(Watched(weakref.ref(tensor), tensor._version, tensor.shape, tensor.data_ptr()))
    return memory


def _fills(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    return tensor.nbytes == storage.nbytes() and not tensor.is_inference()
