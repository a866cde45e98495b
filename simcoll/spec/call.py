"""One rank's call of a collective: :class:`Call` and the buffers it names.

A call is a value: hashable, comparable, free of torch, with a JSON form that can be read back without trust.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import cast

ANY_SOURCE = -1
"""The ``peer`` of a receive that takes a message from any rank (MPI_ANY_SOURCE)."""


SPARSE = "sparse"
"""The ``form`` of a call on sparse tensors."""

UNEQUAL = "unequal"
"""The ``form`` of a call on a list of tensors of several shapes, where a backend runs that in a way of its own."""


class MalformedCallError(ValueError):
    """A call read from a file or from a peer does not have the form that :meth:`Call.to_json` writes."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor of a call.

    ``shape`` is in elements. ``dtype`` and ``device`` (the device's type: ``cpu``, ``cuda``) are empty where a record
    does not state them. ``index`` is the device's number, on which ranks never have to agree. ``order`` lists the
    dimensions longer than one, outermost in memory first, numbered after dimensions of size one are dropped; None is
    row-major (C-contiguous).
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    index: int | None = None
    order: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """The number of elements in the buffer."""
        return math.prod(self.shape)

    @property
    def squeezed(self) -> tuple[int, ...]:
        """The shape without dimensions of size one."""
        return tuple(size for size in self.shape if size != 1)

    @property
    def bytes(self) -> int | None:
        """The size of the elements in bytes; None where the dtype's width is not known."""
        width = _width(self.dtype)
        return None if width is None else self.elements * width

    def to_json(self) -> list[object]:
        """A compact JSON form, read back by :meth:`from_json`."""
        return [list(self.shape), self.dtype, self.device, self.index, None if self.order is None else list(self.order)]

    @classmethod
    def from_json(cls, value: object) -> Buffer:
        """Read what :meth:`to_json` wrote; raises :class:`MalformedCallError` on anything else."""
        if not isinstance(value, list) or len(value) != 5:
            raise MalformedCallError(f"a buffer is a list of five values, got {value!r:.80}")
        shape, dtype, device, index, order = value
        if not isinstance(dtype, str) or not isinstance(device, str) or not (index is None or _is_int(index)):
            raise MalformedCallError(f"a buffer states dtype, device and index, got {value!r:.80}")
        if (sizes := _integers(shape)) is None:
            raise MalformedCallError(f"a buffer's shape is a list of integers, got {shape!r:.80}")
        return cls(sizes, dtype, device, index, _integers(order))


_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


@lru_cache(maxsize=64)
def _width(dtype: str) -> int | None:
    """``float8_e4m3fn`` and ``bfloat16`` say their bits; ``bool`` has a byte."""
    if dtype == "bool":
        return 1
    return _BYTES.get("".join(letter for letter in dtype.partition("_")[0] if letter.isdigit()))


def bytes_of(buffers: tuple[Buffer, ...]) -> int | None:
    """Bytes of several buffers; None where a dtype's width is not known."""
    sizes = [buffer.bytes for buffer in buffers]
    return None if None in sizes else sum(size or 0 for size in sizes)


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's call.

    ``op`` is a row of :data:`simcoll.spec.collectives.COLLECTIVES`; ``spelling`` the c10d method through which it came.
    In-place collectives name the same buffers as inputs and outputs. ``root`` and ``peer`` are group ranks. Splits
    count rows of the first dimension, as ``all_to_all_single`` takes them. ``coalesced`` says that one call carries
    several independent tensors. ``form`` distinguishes calls of one row that a backend runs differently: sparse
    tensors, or a :attr:`~simcoll.backends.base.Backend.forms` of its own.
    """

    op: str
    spelling: str
    inputs: tuple[Buffer, ...] = ()
    outputs: tuple[Buffer, ...] = ()
    reduce_op: str | None = None
    root: int | None = None
    input_splits: tuple[int, ...] | None = None
    output_splits: tuple[int, ...] | None = None
    peer: int | None = None
    tag: int | None = None
    coalesced: bool = False
    form: str | None = None

    def to_json(self) -> dict[str, object]:
        """A JSON form without the fields that are absent, read back by :meth:`from_json`."""
        document: dict[str, object] = {"op": self.op, "spelling": self.spelling}
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is None or value is False or value == ():
                continue
            if name in _BUFFERS:
                value = [buffer.to_json() for buffer in value]
            document[name] = list(value) if isinstance(value, tuple) else value
        return document

    @classmethod
    def from_json(cls, value: object) -> Call:
        """Read what :meth:`to_json` wrote; raises :class:`MalformedCallError` on anything else."""
        if not isinstance(value, dict):
            raise MalformedCallError(f"a call is an object, got {value!r:.80}")
        texts = {name: _text(value, name) for name in ("op", "spelling", "reduce_op", "form")}
        if texts["op"] is None or texts["spelling"] is None:
            raise MalformedCallError(f"a call states op and spelling, got {value!r:.80}")
        return cls(
            texts["op"],
            texts["spelling"],
            inputs=_buffers(value.get("inputs")),
            outputs=_buffers(value.get("outputs")),
            reduce_op=texts["reduce_op"],
            root=_integer(value, "root"),
            input_splits=_integers(value.get("input_splits")),
            output_splits=_integers(value.get("output_splits")),
            peer=_integer(value, "peer"),
            tag=_integer(value, "tag"),
            coalesced=bool(value.get("coalesced")),
            form=texts["form"],
        )


_BUFFERS = ("inputs", "outputs")
_OPTIONAL = tuple(field.name for field in fields(Call) if field.name not in ("op", "spelling"))


_BEYOND = 1 << 60
"""No size, rank or tag comes to it; a file may say it, and what is computed with it would not fit 64 bits."""


def _is_int(value: object) -> bool:
    return type(value) is int and -_BEYOND < value < _BEYOND


def _text(document: dict[str, object], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise MalformedCallError(f"{name} is text, got {value!r:.80}")
    return value


def _integer(document: dict[str, object], name: str) -> int | None:
    value = document.get(name)
    if value is not None and not _is_int(value):
        raise MalformedCallError(f"{name} is an integer, got {value!r:.80}")
    return cast("int | None", value)


def _integers(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(map(_is_int, value)):
        raise MalformedCallError(f"expected a list of integers, got {value!r:.80}")
    return tuple(value)


def _buffers(value: object) -> tuple[Buffer, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MalformedCallError(f"expected a list of buffers, got {value!r:.80}")
    return tuple(Buffer.from_json(item) for item in value)
