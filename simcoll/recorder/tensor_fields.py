"""Finds where the fields of a tensor lie in memory, by trying.

To ask a tensor for its shape, dtype, device, address and version goes through torch's bindings each time. In a rank
that has waited, their code is in no cache: it takes more time than all else that is noted of a call. The fields of a
plain tensor of the CPU lie at fixed places of its ``TensorImpl`` (c10/core/TensorImpl.h), of its ``StorageImpl`` and of
its version counter. They are found by tensors that differ in one field, as
:mod:`~simcoll.recorder.option_fields` finds those of options. Where a field is not found beyond doubt, tensors are
asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from struct import pack
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

MOST_DIMENSIONS = 5
"""Dimensions whose sizes and strides lie in the ``TensorImpl`` itself (c10/core/impl/SizesAndStrides.h)."""

_LOOKED_AT = 256
"""Bytes of each object that are looked at; a ``TensorImpl`` has 184 (torch 2.13)."""

_SIZES = (2, 3, 4, 5, 6)
_STRIDES = (1009, 211, 53, 11, 2)
_OFFSETS = (1777, 1301)
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
)
_WORD = 8
_COUNTER = 24
"""Bytes of a version counter."""
Memory = Callable[[int, int], bytes]
"""Reads so many bytes at an address; raises OSError where there is no memory."""


class TensorFields(NamedTuple):
    """The places of fields, in bytes from the start of what has them."""

    impl: int
    """In the object of Python: the address of the ``TensorImpl``."""
    dimensions: int
    """In the ``TensorImpl``: the number of dimensions, and behind it the sizes."""
    strides: int
    offset: int
    """Elements before the first, in the storage."""
    elements: int
    """The number of elements."""
    dtype: int
    """The number of the dtype, of 16 bits."""
    keys: int
    """The dispatch keys."""
    storage: int
    """The address of the ``StorageImpl``."""
    data: int
    """In the ``StorageImpl``: the address of its first byte."""
    counter: int
    """In the ``TensorImpl``: the address of the version counter, 0 where the tensor has no version."""
    version: int
    """In the version counter: the version, a number of 32 bits."""
    plain: int
    """The dispatch keys of a plain tensor of the CPU."""
    inference: int
    """Those of one that was made in inference mode."""


def tensor_fields() -> TensorFields | None:
    """The places of this torch; None where one was not found."""
    try:
        descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with _disable_current_modes(), torch.inference_mode(False):
            return _found(lambda address, count: os.pread(descriptor, count, address))
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        return None
    finally:
        os.close(descriptor)


def _found(memory: Memory) -> TensorFields:
    """Raises ValueError where a field has more or fewer than one place."""
    base = torch.zeros(4096, device="cpu")
    strided = [
        base.as_strided(_SIZES[:count], _STRIDES[:count], offset)
        for count in range(1, MOST_DIMENSIONS + 1)
        for offset in _OFFSETS
    ]
    with torch.inference_mode():
        made_in_inference = torch.zeros(2, device="cpu")
    if any(type(tensor) is not torch.Tensor for tensor in (base, made_in_inference, *strided)):
        raise TypeError("a mode makes other tensors here")

    def seen(tensor: torch.Tensor) -> bytes:
        return memory(tensor._cdata, _LOOKED_AT)

    def objects(tensor: torch.Tensor) -> bytes:
        return memory(id(tensor), type(tensor).__basicsize__)

    impl = _place((objects(one), _word(one._cdata)) for one in strided)
    counted = [(seen(one), _word(one.dim(), *one.shape), _word(*one.stride())) for one in strided]
    keys = _place((seen(one), _word(_keys(one))) for one in (base, made_in_inference, *strided))
    storage = _place((seen(one), _word(one.untyped_storage()._cdata)) for one in (base, made_in_inference))
    counter, version = _version(memory, seen)
    return TensorFields(
        impl,
        _place((text, sizes) for text, sizes, _ in counted),
        _place((text, strides) for text, _, strides in counted),
        _place((seen(one), _word(int(one.storage_offset()))) for one in strided),
        _place((seen(one), _word(one.numel())) for one in strided[2:]),
        _dtype(seen),
        keys,
        storage,
        _data(memory),
        counter,
        version,
        _keys(base),
        _keys(made_in_inference),
    )


def _word(*numbers: int) -> bytes:
    return pack(f"={len(numbers)}Q", *numbers)


def _place(looks: Iterable[tuple[bytes, bytes]]) -> int:
    """The one place at which each of some bytes has what belongs to it."""
    places = set(range(0, _LOOKED_AT, _WORD))
    for text, wanted in looks:
        places = {place for place in places if text.startswith(wanted, place)}
    (place,) = places
    return place


def _keys(tensor: torch.Tensor) -> int:
    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    return keys


def _dtype(seen: Callable[[torch.Tensor], bytes]) -> int:
    """The place of the number of 16 bits that tells dtypes apart, and is the same for tensors of one dtype."""
    pairs = [[torch.zeros(2, dtype=dtype, device="cpu") for _ in range(2)] for dtype in _DTYPES]
    texts = [[seen(tensor) for tensor in pair] for pair in pairs]

    def tells(place: int) -> bool:
        numbers = [{text[place : place + 2] for text in pair} for pair in texts]
        return all(len(of_pair) == 1 for of_pair in numbers) and len(set.union(*numbers)) == len(_DTYPES)

    (place,) = filter(tells, range(0, _LOOKED_AT, 2))
    return place


def _data(memory: Memory) -> int:
    """The place of the data's address in a storage, which has that of the data's owner, too."""
    lent = bytearray(64)
    storages = [
        torch.zeros(3, device="cpu").untyped_storage(),
        torch.frombuffer(lent, dtype=torch.uint8).untyped_storage(),
    ]
    return _place((memory(one._cdata, _LOOKED_AT), _word(one.data_ptr())) for one in storages)


def _version(memory: Memory, seen: Callable[[torch.Tensor], bytes]) -> tuple[int, int]:
    """The places of the counter's address, and of the version in the counter."""
    places: set[tuple[int, int]] | None = None
    # What lies behind one of them may lead there as well.
    tensors = [torch.zeros(size, device="cpu") for size in (3, 7, 5)]
    for tensor in [*tensors, *tensors, *tensors]:
        tensor.add_(1)
        text, version = seen(tensor), pack("=I", tensor._version)
        now = set(_versions(text, version, memory))
        places = now if places is None else places & now
    (found,) = places or set()
    return found


def _versions(text: bytes, version: bytes, memory: Memory) -> Iterator[tuple[int, int]]:
    """The places of what looks like an address of a counter with that version."""
    for place in range(0, _LOOKED_AT, _WORD):
        address = int.from_bytes(text[place : place + _WORD], sys.byteorder)
        try:
            counter = memory(address, _COUNTER) if address else b""
        except (OSError, OverflowError):
            continue
        yield from ((place, at) for at in range(0, len(counter), 4) if counter.startswith(version, at))
