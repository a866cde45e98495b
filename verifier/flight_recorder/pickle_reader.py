"""Reads a Flight Recorder pickle, opcode by opcode, without unpickling: plain containers, texts and numbers only.

No object of any other kind can come of it, no name is looked up, nothing is called. ``pickletools`` in Python's library
describes the opcodes.
"""

from __future__ import annotations

import struct
from typing import Final

from simcoll.verifier.flight_recorder.pickle_machine import (
    BYTES_LIMIT,
    CutError,
    Handler,
    PickleStream,
    UnsafeDumpError,
)

NUMBERS: Final = {ord("K"): (1, False), ord("M"): (2, False), ord("J"): (4, True)}
"""The opcodes of small numbers: how many bytes, and whether they have a sign."""
LONG: Final = 0x8A
FLOAT: Final = ord("G")
_LONG_LIMIT: Final = 16


def read_pickle(stream: PickleStream) -> object:
    """The object that a pickle holds, its entries left out; raises :class:`CutError` and :class:`UnsafeDumpError`."""
    return stream.read(_HANDLERS)


def _small(stream: PickleStream, code: int) -> None:
    size, signed = NUMBERS[code]
    stream.spot(stream.at - 1, code)
    stream.stack.append(int.from_bytes(stream.take(size), "little", signed=signed))


def _long(stream: PickleStream) -> None:
    offset, size = stream.at - 1, stream.take(1)[0]
    if size == 8:
        stream.spot(offset, LONG)
    _push_long(stream, size)


def _push_long(stream: PickleStream, size: int) -> None:
    if size > _LONG_LIMIT:
        raise UnsafeDumpError(f"a number of it has {size} bytes")
    stream.stack.append(int.from_bytes(stream.take(size), "little", signed=True))


def _float(stream: PickleStream) -> None:
    stream.spot(stream.at - 1, FLOAT)
    stream.stack.append(struct.unpack(">d", stream.take(8))[0])


def _text(stream: PickleStream, size: int) -> None:
    if size > BYTES_LIMIT:
        raise CutError if stream.at + size > len(stream.data) else UnsafeDumpError(f"a text of it has {size} bytes")
    stream.bounded()
    stream.stack.append(stream.take(size).decode("utf-8", "replace"))


def _tuple(stream: PickleStream, size: int) -> None:
    stream.open(tuple(stream.above(size)))


def _set_item(stream: PickleStream) -> None:
    key, value = stream.above(2)
    holder = stream.top()
    if not isinstance(holder, dict) or (type(key) is not str and type(key) is not int):
        raise UnsafeDumpError("it sets an item that no dict of a dump has")
    holder[key] = value


def _dict(stream: PickleStream) -> None:
    items = stream.popped()
    stream.open({})
    stream.marks.append(len(stream.stack))
    stream.stack += items
    stream.set_items()


def _integer_line(stream: PickleStream) -> None:
    text = stream.line()
    if text in ("00", "01"):
        stream.stack.append(text == "01")
        return
    try:
        stream.stack.append(int(text.removesuffix("L")[: 2 * _LONG_LIMIT]))
    except ValueError as error:
        raise UnsafeDumpError("a number of it is none") from error


def _float_line(stream: PickleStream) -> None:
    try:
        stream.stack.append(float(stream.line()[: 2 * _LONG_LIMIT]))
    except ValueError as error:
        raise UnsafeDumpError("a number of it is none") from error


def _index_line(stream: PickleStream) -> int:
    text = stream.line()
    if not text.isdecimal() or len(text) > _LONG_LIMIT:
        raise UnsafeDumpError("it refers to what it does not hold")
    return int(text)


def _length(stream: PickleStream, size: int) -> int:
    return int.from_bytes(stream.take(size), "little")


def _append(stream: PickleStream) -> None:
    stream.append_items(stream.above(1))


_HANDLERS: Final[dict[int, Handler]] = {
    code[0]: handler
    for code, handler in (
        (b"h", lambda stream: stream.get(stream.take(1)[0])),
        (b"K", lambda stream: _small(stream, 0x4B)),
        (b"(", PickleStream.mark),
        (b"]", lambda stream: stream.open([])),
        (b"}", lambda stream: stream.open({})),
        (b"e", lambda stream: stream.append_items(stream.popped())),
        (b"u", PickleStream.set_items),
        (b"M", lambda stream: _small(stream, 0x4D)),
        (b"J", lambda stream: _small(stream, 0x4A)),
        (b"\x8a", _long),
        (b"\x8b", lambda stream: _push_long(stream, _length(stream, 4))),
        (b"j", lambda stream: stream.get(_length(stream, 4))),
        (b"G", _float),
        (b"X", lambda stream: _text(stream, _length(stream, 4))),
        (b"\x8c", lambda stream: _text(stream, _length(stream, 1))),
        (b"\x8d", lambda stream: _text(stream, _length(stream, 8))),
        (b"N", lambda stream: stream.stack.append(None)),
        (b"\x88", lambda stream: stream.stack.append(True)),
        (b"\x89", lambda stream: stream.stack.append(False)),
        (b"q", lambda stream: stream.put(stream.take(1)[0])),
        (b"r", lambda stream: stream.put(_length(stream, 4))),
        (b"\x94", PickleStream.memoize),
        (b"a", _append),
        (b"s", _set_item),
        (b")", lambda stream: stream.stack.append(())),
        (b"\x85", lambda stream: _tuple(stream, 1)),
        (b"\x86", lambda stream: _tuple(stream, 2)),
        (b"\x87", lambda stream: _tuple(stream, 3)),
        (b"t", lambda stream: stream.open(tuple(stream.popped()))),
        (b"l", lambda stream: stream.open(stream.popped())),
        (b"d", _dict),
        (b"I", _integer_line),
        (b"L", _integer_line),
        (b"F", _float_line),
        (b"V", lambda stream: stream.stack.append(stream.line())),
        (b"p", lambda stream: stream.put(_index_line(stream))),
        (b"g", lambda stream: stream.get(_index_line(stream))),
        (b"\x80", lambda stream: stream.take(1)),
        (b"\x95", lambda stream: stream.take(8)),
        (b".", PickleStream.stop),
    )
}
