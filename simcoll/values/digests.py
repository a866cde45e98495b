"""The digest of one side of a call, computed with whichever of numpy and torch has its buffers.

Only what both libraries share is used: operators, ``sum``, ``min``, ``max``. Integers wrap around modulo 2^64 in
both. No function reads values back: a digest's numbers stay where the buffers are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import and_, or_, xor
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.value_laws import (
    MOST_PARTS,
    SPOTS,
    SPOTS_ALONE,
    Piece,
    ValueLaw,
    folded,
    is_float,
    is_linear,
    operator,
    pieces,
    salt,
    spots,
)

Array: TypeAlias = Any
"""A numpy array or a tensor."""

_BITS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType({"band": and_, "bor": or_, "bxor": xor})

_ADDED, _FACTOR = 0x5851F42D4C957F2D, 0x14057B7EF767814F


class Library(Protocol):
    """The operations that numpy and torch spell differently."""

    def words(self, flat: Array, rows: int) -> Array:
        """The bytes of so many rows of elements as a table of 64-bit integers: of eight bytes each where they divide a
        row.
        """
        ...

    def integers(self, flat: Array, rows: int = 1) -> Array:
        """A table of integers or truth values as 64-bit integers."""
        ...

    def reals(self, flat: Array) -> Array:
        """Floats as float64; a complex number as two."""
        ...

    def total(self, flat: Array) -> Array:
        """The sum of floats as float64, in which no finite sum of narrower ones overflows."""
        ...

    def magnitude(self, flat: Array) -> Array:
        """The sum of the absolute values of floats as float64."""
        ...

    def largest(self, flat: Array) -> Array:
        """The largest absolute value of floats as float64."""
        ...

    def is_known_finite(self, total: Array) -> bool:
        """True if a sum is known to be finite, without waiting for it: then all its terms are finite."""
        ...

    def chunk(self, like: Array) -> int:
        """Elements to work on together: on a host, as many as fit its caches."""
        ...

    def odd(self, count: int, like: Array) -> Array:
        """The first odd numbers, on the device of ``like``."""
        ...

    def row(self, numbers: Sequence[int], like: Array) -> Array:
        """These 64-bit integers, on the device of ``like``."""
        ...

    def joined(self, parts: Sequence[Array]) -> Array:
        """Numbers and rows of one dtype as one row."""
        ...

    def product(self, row: Array) -> Array:
        """The product of a row of integers."""
        ...


@dataclass(slots=True)
class SideDigest:
    """The numbers of one side of a call, by their names: see :class:`simcoll.verifier.values.digests.SideValues`.

    ``points`` are its elements at the selected places, ``parts`` has a number for the part sent to each peer.
    """

    numbers: dict[str, Array]
    points: list[Array]
    parts: Array | None = None


def side_digest(
    call: Call, group_rank: int, group_size: int, sequence: int, rows: Sequence[Array], library: Library, *, sent: bool
) -> SideDigest | None:
    """The digest of the buffers that a rank sends, or has received; None where the row has no law for them.

    ``rows`` are the call's input (or output) buffers, each as one contiguous row of elements.
    """
    spec = spec_of(call)
    law, buffers = spec.values, call.inputs if sent else call.outputs
    if law is None or not buffers:
        return None
    dtype, found = buffers[0].dtype, SideDigest({}, [])
    cut = [*pieces(law, call, buffers, group_size, sent=sent)]
    operation = operator(call.reduce_op, dtype) if law.reduced else None
    fold = folded(operation, dtype)
    peers = group_size if sent and law.sent_in_parts and group_size <= MOST_PARTS else 0

    def weigh(name: str, read: _Read) -> None:
        weighed = [
            (piece, _row_sums(read(_block(rows, piece), len(piece.peers)), piece.place, library, hashed=name == "hash"))
            for piece in cut
            if piece.count
        ]
        salted = [
            (piece, sums * library.row(_salts(law, piece, group_rank, sent=sent), sums)) for piece, sums in weighed
        ]
        found.numbers[name] = library.joined([library.row([0], rows[0]), *(sums for _, sums in salted)]).sum()
        found.parts = _by_peer(salted, peers, library.row([0], rows[0]), library)

    if not law.reduced or (not sent and law.replicated):
        weigh("hash", library.words)
    if is_linear(law.reduced, operation, dtype):
        weigh("linear", library.integers)
    if fold is not None and (number := _folded(fold, rows, library, floats=is_float(dtype))) is not None:
        found.numbers["fold"] = number
    if is_float(dtype) and (sent or law.reduced):
        found.numbers |= _sizes(rows, library, sent=sent)
        if law.reduced and peers:
            sums = [(piece, _part_sums(_block(rows, piece), len(piece.peers), library)) for piece in cut if piece.count]
            found.parts = _by_peer(sums, peers, library.reals(rows[0][:0]), library)
    if operation is not None:
        found.points = _points(law, call, buffers, rows, group_rank, group_size, sequence, library, sent=sent)
    return found


_Read: TypeAlias = Callable[[Any, int], Any]


def _block(rows: Sequence[Array], piece: Piece) -> Array:
    return rows[piece.buffer][piece.start : piece.start + piece.count * len(piece.peers)]


def _salts(law: ValueLaw, piece: Piece, group_rank: int, *, sent: bool) -> list[int]:
    return [salt(law, *((group_rank, peer) if sent else (peer, group_rank))) for peer in piece.peers]


def _part_sums(block: Array, rows: int, library: Library) -> Array:
    return library.reals(block).reshape(rows, -1).sum(1)


def _by_peer(sums: Sequence[tuple[Piece, Array]], peers: int, none: Array, library: Library) -> Array | None:
    """The sum of the part for each peer; None where it is not needed."""
    if not peers:
        return None
    ones = [(peer, part[place : place + 1]) for piece, part in sums for place, peer in enumerate(piece.peers)]
    zero = library.joined([none, *(one for _, one in ones)])[:1] * 0
    return library.joined(
        [library.joined([zero, *(one for other, one in ones if other == peer)]).sum() for peer in range(peers)]
    )


def _row_sums(table: Array, place: int, library: Library, *, hashed: bool) -> Array:
    """The weighted sum of each row."""
    count, width = table.shape
    step = max(1, library.chunk(table) // count)
    odd = library.odd(min(step, width), table)
    found = None
    for start in range(0, width, step):
        part = table[:, start : start + step]
        if hashed:
            part = part + _ADDED
            part *= _FACTOR
            part ^= part >> 32 & 0xFFFFFFFF
        weighted = (part * odd[: part.shape[1]]).sum(1)
        if place + start:
            weighted = weighted + part.sum(1) * (2 * (place + start))
        found = weighted if found is None else found + weighted
    return found


def _folded(operation: str, rows: Sequence[Array], library: Library, *, floats: bool) -> Array | None:
    """All elements as one number; None where there are none."""
    parts = [library.reals(row) if floats else library.integers(row)[0] for row in rows if row.shape[0]]
    if not parts:
        return None
    if operation in ("min", "max"):
        return getattr(library.joined([getattr(part, operation)() for part in parts]), operation)()
    return _reduced(operation, library.joined([_reduced(operation, part, library) for part in parts]), library)


def _reduced(operation: str, row: Array, library: Library) -> Array:
    """The product, or the bits, of a row, as one number."""
    if operation == "product":
        return library.product(row)
    combine = _BITS[operation]
    while (size := row.shape[0]) > 1:
        half = size // 2
        both = combine(row[:half], row[half : 2 * half])
        if size % 2:
            both[:1] = combine(both[:1], row[-1:])
        row = both
    return row.sum()


def _sizes(rows: Sequence[Array], library: Library, *, sent: bool) -> dict[str, Array]:
    """The sum of floats, for sent ones that of their magnitudes too, and the numbers of NaNs and infinities."""
    names = ("sum", "magnitude", "largest", "nan", "plus", "minus") if sent else ("sum", "nan", "plus", "minus")
    found: dict[str, list[Array]] = {name: [] for name in names}
    for row in rows:
        step = library.chunk(row)
        for start in range(0, row.shape[0], step):
            part = row[start : start + step]
            found["sum"].append(library.total(part))
            if sent:
                found["magnitude"].append(library.magnitude(part))
                found["largest"].append(library.largest(part))
            if not library.is_known_finite(found["sum"][-1]):
                part = library.reals(part)
                found["nan"].append((part != part).sum())
                found["plus"].append((part == float("inf")).sum())
                found["minus"].append((part == float("-inf")).sum())
    if not found["sum"]:
        return {}
    none = library.row([0], rows[0])
    counts = {name: library.joined([none, *found[name]]).sum() for name in ("nan", "plus", "minus")}
    whole = {name: library.joined(found[name]).sum() for name in names if name in ("sum", "magnitude")}
    return whole | counts | ({"largest": library.joined(found["largest"]).max()} if sent else {})


def _points(
    law: ValueLaw,
    call: Call,
    buffers: Sequence[Buffer],
    rows: Sequence[Array],
    group_rank: int,
    group_size: int,
    sequence: int,
    library: Library,
    *,
    sent: bool,
) -> list[Array]:
    """The elements at the selected places: of the whole that is reduced, as far as this side has them."""
    if call.coalesced:
        return []
    own = sum(buffer.elements for buffer in buffers)
    most = SPOTS if law.replicated else SPOTS_ALONE
    if not law.sent_in_parts:
        places = spots(sequence, own, most)
    else:
        part = own // group_size if sent else own
        if sent and any(buffer.elements != part for buffer in buffers if len(buffers) > 1):
            return []
        places = spots(sequence, part * group_size, most)
        if not sent:
            places = [
                place - group_rank * part for place in places if group_rank * part <= place < own + group_rank * part
            ]
    read = library.reals if is_float(buffers[0].dtype) else library.integers
    if len(rows) == 1 and places:
        # One by one each place would be read by operations of its own.
        chosen = read(rows[0][library.row(places, rows[0])])
        width = chosen.reshape(-1).shape[0] // len(places)
        whole = chosen.reshape(-1)
        return [whole[begin : begin + width] for begin in range(0, width * len(places), width)]
    found = []
    for place in places:
        number = 0
        while place >= buffers[number].elements:
            place -= buffers[number].elements
            number += 1
        found.append(read(rows[number][place : place + 1]).reshape(-1))
    return found
