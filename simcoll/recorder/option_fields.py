"""Finds where the fields of c10d's options lie in memory, by trying.

Asking an options object for ``asyncOp`` or ``reduceOp`` goes through pybind each time, which takes a rank that has
waited more time than all else that is read of a call. The fields lie at fixed places behind the pointer that an object
of pybind begins with (pybind11, ``detail/common.h``, ``struct instance``). They are found by setting each field to all
its values and looking at what changes; memory is read through the kernel, which refuses a wrong address where a program
would crash. Where a field is not found beyond doubt, it is asked for.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

from torch._C import _distributed_c10d
from torch.distributed import ReduceOp

_LOOKED_AT = 96
"""Bytes of an options object that are looked at; the largest has 72 (torch 2.13)."""

_NOWHERE = 0xFF
_ROOTS = (0, 1, 0x0102030405060708)
_OPS = [op for name, op in ReduceOp.RedOpType.__members__.items() if name not in ("PREMUL_SUM", "UNUSED")]
"""The reduce ops that need nothing beside them."""


def option_fields() -> dict[type, int]:
    """The places of the fields in the options of each type, in bytes from their start: ``asyncOp`` in the lowest byte
    of the number, ``reduceOp`` and ``rootRank`` in the next two (255: the type has no such field).
    """
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        kinds = (kind for name, kind in vars(_distributed_c10d).items() if name.endswith("Options"))
        found = {kind: _fields_of(kind, memory) for kind in kinds if type(kind).__name__ == "pybind11_type"}
    finally:
        os.close(memory)
    return {kind: fields for kind, fields in found.items() if fields is not None}


def _fields_of(kind: type, memory: int) -> int | None:
    """The places of the fields of one type of options; None where one was not found."""
    try:
        options: Any = kind()
        address = ctypes.c_void_p.from_address(id(options) + object.__basicsize__).value or 0

        def place_of(name: str, values: Iterable[Any], written: Callable[[Any], bytes]) -> int:
            if not hasattr(options, name):
                return _NOWHERE
            places = set(range(_LOOKED_AT - 8))
            for value in values:
                setattr(options, name, value)
                seen = os.pread(memory, _LOOKED_AT, address)
                places = {place for place in places if seen.startswith(written(value), place)}
            (place,) = places
            return place

        asynchronous = place_of("asyncOp", (True, False, True), lambda value: bytes([value]))
        reduce_op = place_of("reduceOp", _OPS, lambda op: bytes([op.value]))
        root = place_of("rootRank", _ROOTS, lambda root: struct.pack("=q", root))
    except (AttributeError, OSError, TypeError, ValueError):
        return None
    return None if asynchronous == _NOWHERE else asynchronous | reduce_op << 8 | root << 16
