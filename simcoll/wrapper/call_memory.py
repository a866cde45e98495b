"""The memory that a call uses: which bytes of which storages, and how a write to them is seen.

The version counter of a tensor that fills its storage shows a write, but for those that the backend itself counts. Of a
part of a storage the contents are compared.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from simcoll.core.strides import span
from simcoll.recorder.quick import OpenCall

_MOST_TENSORS = 64
"""Tensors of a call beyond which its memory is not watched."""

_MOST_BYTES = 1 << 26
"""Bytes of a part of a storage beyond which its contents are not compared."""

_PLAIN = torch.Tensor.__torch_dispatch__
"""The method that a tensor subclass overrides if it only wraps other tensors."""


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
        """True if both use a byte that one of them writes; False where that is not known."""
        if self.storage != other.storage or not (self.writes or other.writes):
            return False
        if self.dense and other.dense:
            return self.start < other.end and other.start < self.end
        # Interleaved columns share their span and no byte; only the very same ones are sure to.
        return self.layout == other.layout


def has_memory(tensor: torch.Tensor) -> bool:
    """True for a tensor that lies in a storage of its own kind, and has elements there."""
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
    return Region(storage, start, start + span(tensor.shape, tensor.stride()) * size, False, layout, writes)


class Watched(NamedTuple):
    """A tensor that fills its storage, so that its version counter speaks for it alone.

    It is held, as the backend holds it: the program may have only another view of it. ``counts`` are the versions that
    the call itself may add until it ends; ``sent`` says that it sends the contents.
    """

    tensor: torch.Tensor
    version: int
    shape: torch.Size
    address: int
    counts: int
    sent: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, counts: int, *, sent: bool) -> Watched:
        """A tensor as it is now."""
        return cls(tensor, tensor._version, tensor.shape, tensor.data_ptr(), counts, sent)

    def changed(self) -> bool:
        """True if the tensor was written to since; False for one with another shape or memory, which shows nothing."""
        tensor = self.tensor
        if tensor._version <= self.version + self.counts:
            return False
        return tensor.shape == self.shape and tensor.data_ptr() == self.address


class SentPart(NamedTuple):
    """A part of a storage that a call sends. Versions speak for the whole storage, so contents are compared.

    ``receives`` says that the result arrives there too: contents then say nothing once the call was launched.
    """

    storage: torch.UntypedStorage
    """Held, so that nobody else gets its memory."""
    extent: tuple[int, int]
    """The storage's address and size: the program may resize it."""
    address: int
    size: int
    contents: tuple[int, bytes]
    receives: bool

    def changed(self) -> bool:
        """True if other bytes are there now; False for a storage that has been resized, which shows nothing."""
        return _extent(self.storage) == self.extent and _contents(self.address, self.size) != self.contents


def _extent(storage: torch.UntypedStorage) -> tuple[int, int]:
    return storage.data_ptr(), storage.nbytes()


def _contents(address: int, size: int) -> tuple[int, bytes]:
    """Returns the sum of the words of some bytes, and the rest; no dispatch mode of the program sees it."""
    data = memoryview((ctypes.c_ubyte * size).from_address(address))
    whole = size - size % 8
    return int(np.frombuffer(data[:whole], np.uint64).sum(dtype=np.uint64)), bytes(data[whole:])


ByRole: TypeAlias = Mapping[str, Sequence[torch.Tensor]]
"""The tensors of a call by their role: ``inputs``, ``outputs``, ``inout``."""


class CallMemory(NamedTuple):
    """The memory that a call uses: regions, tensors in which its result arrives, memory watched for writes."""

    regions: list[Region]
    written: list[weakref.ref[torch.Tensor]]
    watched: list[Watched]
    parts: list[SentPart]


def memory_of(
    tensors: ByRole,
    *,
    writes: bool,
    sends: bool,
    counts: int | None = None,
    parts: bool = False,
) -> CallMemory:
    """Returns the memory that a call uses of its tensors, by role; none for a call with very many.

    ``writes`` says that its result arrives in them, ``sends`` that a write to an input while it runs can be seen and
    matters; ``parts`` has it seen in parts of storages as well. ``counts`` are the versions that the call adds to a
    tensor of its result, at most; None: a write to one of them cannot be told from it.
    """
    memory = CallMemory([], [], [], [])
    if sum(map(len, tensors.values())) > _MOST_TENSORS:
        return memory
    outputs: set[int] = set()
    for role, of_role in tensors.items():
        written = writes and role != "inputs"
        often = Counter(map(id, of_role)) if written and counts and len(of_role) > 1 else None
        for tensor in of_role:
            if not has_memory(tensor):
                continue
            storage = tensor.untyped_storage()
            address, size = storage._cdata, tensor.nbytes
            fills = size == storage.nbytes()
            if fills and tensor.is_contiguous():
                memory.regions.append(Region(address, 0, size, True, (), written))
            else:
                memory.regions.append(region_of(tensor, address, writes=written))
            # A tensor of inference mode has no version.
            fills = fills and not tensor.is_inference()
            if written:
                memory.written.append(weakref.ref(tensor))
            sent = sends and role != "outputs" and address not in outputs
            if role == "outputs":
                outputs.add(address)
            if not sent and written and counts is not None and fills:
                # A tensor that stands in a list several times gets as many results.
                times = counts if often is None else counts * often[id(tensor)]
                memory.watched.append(Watched.of(tensor, times, sent=False))
            elif sent:
                if fills:
                    # Of what a call sends and receives alike the backend counts nothing.
                    memory.watched.append(Watched.of(tensor, 0, sent=True))
                elif parts and tensor.is_cpu and tensor.is_contiguous() and size <= _MOST_BYTES:
                    place = tensor.data_ptr()
                    part = SentPart(storage, _extent(storage), place, size, _contents(place, size), written)
                    memory.parts.append(part)
    return memory


def memory_noted(call: OpenCall) -> CallMemory:
    """Returns the memory of an open call, as it was when the call was made.

    Of tensors that lie elsewhere by now nothing is known but that the result arrives in them.
    """
    use, tensors, noted = call.prepared.use, call.tensors, call.memory
    shapes = [one for one in call.key if type(one) is torch.Size]
    every = [tensor for of_role in tensors.values() for tensor in of_role]
    then = {id(tensor): (*known, shape) for tensor, known, shape in zip(every, noted, shapes, strict=True)}

    def stays(tensor: torch.Tensor) -> bool:
        address, size, _, _ = then[id(tensor)]
        return tensor.nbytes == size and (not size or tensor.data_ptr() == address)

    here = {role: [tensor for tensor in of_role if stays(tensor)] for role, of_role in tensors.items()}
    memory = memory_of(here, writes=use.writes, sends=use.sends and not use.copies, counts=use.counts)
    watched = []
    for one in memory.watched:
        _, _, version, shape = then[id(one.tensor)]
        watched.append(one._replace(version=version, shape=shape))
    return memory._replace(written=results_of(call), watched=watched)


def results_of(call: OpenCall) -> list[weakref.ref[torch.Tensor]]:
    """Returns the tensors in which the result of an open call arrives."""
    if not call.prepared.use.writes:
        return []
    written = [tensor for role, of_role in call.tensors.items() if role != "inputs" for tensor in of_role]
    return [weakref.ref(tensor) for tensor in written if tensor.numel() > 0]
