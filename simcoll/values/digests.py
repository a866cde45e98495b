"""The digest of one side of a call, computed with whichever of numpy and torch has its buffers.

Only what both libraries share is used: operators, ``sum``, ``min``, ``max``. Integers wrap around modulo 2^64 in
both. No function reads values back: a digest's numbers stay where the buffers are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import and_, or_, xor
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.value_laws import (
    MOST_PARTS,
    SPOTS,
    SPOTS_ALONE,
    SUMMED_BLOCK,
    SUMMED_TOGETHER,
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
from simcoll.values.folding import ADDED, FACTOR, ROW, SMALL

Array: TypeAlias = Any
"""A numpy array or a tensor."""

_BITS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType({"band": and_, "bor": or_, "bxor": xor})

_NOWHERE = 1 << 61
"""The place of what is not there, beyond all others."""

_KINDS = 3
"""Numbers that are not finite: NaN, and two infinities."""

_BLOCKS = 16
"""Blocks of floats that are read together: four megabytes on a host, which its caches hold for the next pass."""


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

    def working(self, flat: Array) -> Array:
        """Floats in the narrowest dtype in which to compute, float32 or float64; a complex number as two."""
        ...

    def double(self, real: Array) -> Array:
        """Floats of that dtype as float64."""
        ...

    def together(self, real: Array) -> Array:
        """Floats that :meth:`working` made, summed over the second of three dimensions, as float64: valid until the
        thread's next such sum.
        """
        ...

    def signs(self, count: int, like: Array) -> Array:
        """The first of :func:`~simcoll.spec.value_laws.signs`, on the device of ``like``."""
        ...

    def weighed(self, table: Array, weights: Array) -> Array:
        """The weighted sum of each row of a table of float64."""
        ...

    def squares(self, real: Array, rows: int) -> Array:
        """The sum of the squares of each row of floats that :meth:`working` made, as float64, to within 1 %."""
        ...

    def largest(self, flat: Array) -> Array:
        """The largest absolute value of floats as float64."""
        ...

    def lines(self, flat: Array) -> tuple[Array, Array]:
        """The bytes of a row of elements as a table of rows of ``ROW`` 64-bit integers, and the elements left over."""
        ...

    def total(self, real: Array) -> Array:
        """The sum of floats that :meth:`working` made, however rounded: finite only if all of them are."""
        ...

    def is_known_finite(self, sums: Array) -> bool:
        """True if sums are known to be finite, without waiting for them: then all their terms are finite."""
        ...

    def chunk(self, like: Array) -> int:
        """Integers to work on together: on a host, as many as fit its caches with all that is made of them."""
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

    ``points`` are its elements at the selected places, ``parts`` has a number for the part sent to each peer, and of
    sums of floats ``squared_parts`` another one.
    """

    numbers: dict[str, Array]
    points: list[Array]
    parts: Array | None = None
    squared_parts: Array | None = None


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

    def weigh(name: str, weighed: Sequence[tuple[Piece, Array]]) -> None:
        salted = [
            (piece, sums * library.row(_salts(law, piece, group_rank, sent=sent), sums)) for piece, sums in weighed
        ]
        found.numbers[name] = library.joined([library.row([0], rows[0]), *(sums for _, sums in salted)]).sum()
        found.parts = _by_peer(salted, peers, library.row([0], rows[0]), library)

    floats, blocks = is_float(dtype), [(piece, _block(rows, piece)) for piece in cut if piece.count]
    hashed = not law.reduced or (not sent and law.replicated)
    # Where all ranks hold the same bits, which the hashes show, two add them up, each two in their turn. Were it one, a
    # wrong result that most ranks hold, none of which has added it up, would look like the right one.
    alike = not sent and law.replicated and operation in ("sum", "avg")
    shared = alike and (group_rank - sequence) % group_size > 1
    measured = floats and (sent or law.reduced) and not shared
    wanted = _Wanted(hashed, measured, law.reduced, law.reduced and sent)
    read = [(piece, *_read(block, piece, library, wanted)) for piece, block in blocks]
    if hashed:
        weigh("hash", [(piece, hashes) for piece, hashes, _ in read if hashes is not None])
    if is_linear(law.reduced, operation, dtype):
        tables = ((piece, library.integers(block, len(piece.peers))) for piece, block in blocks)
        weigh("linear", [(piece, _row_sums(table, piece.place, library, hashed=False)) for piece, table in tables])
    if fold is not None and (number := _folded(fold, rows, library, floats=floats)) is not None:
        found.numbers["fold"] = number
    if measured:
        sizes = [(piece, one) for piece, _, one in read if one is not None]
        _add_sizes(found, sizes, peers if law.reduced else 0, rows, library, summed=law.reduced)
        if sent and dtype == "float16" and (largest := [library.largest(row) for row in rows if row.shape[0]]):
            found.numbers["largest"] = library.joined(largest).max()
    if operation is not None:
        found.points = _points(law, call, buffers, rows, group_rank, group_size, sequence, library, sent=sent)
    return found


def _block(rows: Sequence[Array], piece: Piece) -> Array:
    return rows[piece.buffer][piece.start : piece.start + piece.count * len(piece.peers)]


def _salts(law: ValueLaw, piece: Piece, group_rank: int, *, sent: bool) -> list[int]:
    return [salt(law, *((group_rank, peer) if sent else (peer, group_rank))) for peer in piece.peers]


def _by_peer(sums: Sequence[tuple[Piece, Array]], peers: int, none: Array, library: Library) -> Array | None:
    """The sum of the part for each peer; None where it is not needed."""
    if not peers:
        return None
    ones = [(peer, part[place : place + 1]) for piece, part in sums for place, peer in enumerate(piece.peers)]
    zero = library.joined([none, *(one for _, one in ones)])[:1] * 0
    return library.joined(
        [library.joined([zero, *(one for other, one in ones if other == peer)]).sum() for peer in range(peers)]
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is computed of a block: hashes of its rows, whether its floats are finite, their checksums and squares."""

    hashed: bool
    measured: bool
    summed: bool
    squared: bool


@dataclass(slots=True)
class _Sizes:
    """Of each row of a block of floats the checksum, and the sum of squares, where they are wanted; of all rows the
    numbers of NaNs and infinities, and the place of the first in the block, or ``_NOWHERE``; None: they are known to be
    finite.
    """

    sums: Array
    squares: Array | None
    counts: Array | None


def _read(block: Array, piece: Piece, library: Library, wanted: _Wanted) -> tuple[Array | None, _Sizes | None]:
    """The hash of the bits of each row of elements, and the sizes of the floats.

    Small rows are read at once. All that is computed of a large one is computed of each part while the cache has it.
    """
    rows, hashes, sizes = len(piece.peers), None, None
    count, step = block.shape[0] // rows, library.chunk(block) * _BLOCKS
    if wanted.hashed and block.nbytes // rows <= SMALL:
        hashes = _row_sums(library.words(block, rows), piece.place, library, hashed=True)
    if wanted.measured and 2 * count < SUMMED_BLOCK:  # A complex number is two.
        sizes = _measured(block, rows, library, wanted)
    hashed: list[_HashedRow] = []
    sized: list[_SizedRow] = []
    for first in range(0, block.shape[0], count):
        row = block[first : first + count]
        hashed += [_HashedRow(row, library)] if wanted.hashed and hashes is None else []
        sized += [_SizedRow(row, library, wanted)] if wanted.measured and sizes is None else []
        passes: list[_HashedRow | _SizedRow] = [*hashed[-1:], *sized[-1:]]
        for start in range(0, count if passes else 0, step):
            for one in passes:
                one.take(start, min(start + step, count))
    if hashed:
        hashes = library.joined([one.hash(piece.place) for one in hashed])
    return hashes, _together([one.sizes() for one in sized], count, library) if sized else sizes


class _HashedRow:
    """The hash of a large row, part by part. Its words are laid out in a table, and the sums of the table's rows and of
    its columns are hashed: words that change places change one or the other.
    """

    def __init__(self, row: Array, library: Library) -> None:
        self._library = library
        self._size = row.nbytes // row.shape[0]
        self._table, rest = library.lines(row)
        self._sums = [library.words(rest, 1)[0]] if rest.shape[0] else []
        self._columns: Array | None = None
        self._taken = 0

    def take(self, start: int, end: int) -> None:
        """Read the lines of the table that end within these elements."""
        first, self._taken = self._taken, end * self._size // (8 * ROW)
        step = max(1, self._library.chunk(self._table) // ROW)
        for begin in range(first, self._taken, step):
            part = self._table[begin : min(begin + step, self._taken)]
            self._sums.append(part.sum(1))
            self._columns = part.sum(0) if self._columns is None else self._columns + part.sum(0)

    def hash(self, place: int) -> Array:
        """The hash."""
        words = self._library.joined([*self._sums, self._columns])
        return _row_sums(words.reshape(1, -1), place, self._library, hashed=True)


class _SizedRow:
    """The sizes of a large row of floats, part by part."""

    def __init__(self, row: Array, library: Library, wanted: _Wanted) -> None:
        self._row = row
        self._library = library
        self._wanted = wanted
        self._parts: list[tuple[int, int]] = []
        self._sums: list[Array] = []
        self._squares: list[Array] = []

    def take(self, start: int, end: int) -> None:
        """Read these elements."""
        real = self._library.working(self._row[start:end])
        self._parts.append((start, end))
        self._sums.append(_checksums(real, 1, self._library) if self._wanted.summed else self._library.total(real))
        if self._wanted.squared:
            self._squares.append(self._library.squares(real, 1))

    def sizes(self) -> _Sizes:
        """The sizes of all parts together."""
        sums = self._library.joined([self._library.joined(self._sums).sum()])
        squares = self._library.joined([self._library.joined(self._squares).sum()]) if self._squares else None
        if self._library.is_known_finite(sums):
            return _Sizes(sums, squares, None)
        counts = [(_counts(self._row[start:end], self._library), start) for start, end in self._parts]
        return _Sizes(sums, squares, _added(counts, self._library))


def _row_sums(table: Array, place: int, library: Library, *, hashed: bool) -> Array:
    """The weighted sum of each row."""
    count, width = table.shape
    step = max(1, library.chunk(table) // count)
    odd = library.odd(min(step, width), table)
    found = None
    for start in range(0, width, step):
        part = table[:, start : start + step]
        if hashed:
            part = part + ADDED
            part *= FACTOR
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


def _together(rows: Sequence[_Sizes], count: int, library: Library) -> _Sizes:
    """The sizes of rows of so many elements."""
    if len(rows) == 1:
        return rows[0]
    squares = [row.squares for row in rows if row.squares is not None]
    return _Sizes(
        library.joined([row.sums for row in rows]),
        library.joined(squares) if squares else None,
        _added([(row.counts, place * count) for place, row in enumerate(rows)], library),
    )


def _added(counts: Sequence[tuple[Array | None, int]], library: Library) -> Array | None:
    """The counts of parts of a block together; each part comes with its place."""
    known = [(one, place) for one, place in counts if one is not None]
    if not known:
        return None
    numbers = [sum(one[place : place + 1] for one, _ in known) for place in range(_KINDS)]
    firsts = library.joined([one[_KINDS:] + place for one, place in known])
    return library.joined([*numbers, firsts.min()])


def _measured(block: Array, rows: int, library: Library, wanted: _Wanted) -> _Sizes:
    """The sizes of rows that are read at once."""
    real = library.working(block)
    sums = _checksums(real, rows, library) if wanted.summed else library.total(real)
    squares = library.squares(real, rows) if wanted.squared else None
    return _Sizes(sums, squares, None if library.is_known_finite(sums) else _counts(block, library))


def _counts(block: Array, library: Library) -> Array:
    """The numbers of NaNs and infinities, and the place of the first, or ``_NOWHERE``."""
    real = library.reals(block)
    tests = real != real, real == float("inf"), real == float("-inf")
    some = (tests[0] | tests[1] | tests[2]) * 1
    first = some.argmax() // (some.shape[0] // block.shape[0]) + (1 - some.max()) * _NOWHERE
    return library.joined([*(test.sum() for test in tests), first])


def _checksums(real: Array, rows: int, library: Library) -> Array:
    """The sum of the floats of each row, each with a sign that follows from its place.

    In whole blocks a few elements share a sign, and are added up before they become float64.
    """
    if rows > 1 or real.shape[0] < SUMMED_BLOCK:
        table = library.double(real).reshape(rows, -1)
        return library.weighed(table, library.signs(table.shape[1], real))
    width, whole = SUMMED_BLOCK // SUMMED_TOGETHER, real.shape[0] - real.shape[0] % SUMMED_BLOCK
    table = library.together(real[:whole].reshape(-1, SUMMED_TOGETHER, width))
    sums = [library.weighed(table, library.signs(width, real))]
    if whole < real.shape[0]:
        sums.append(_checksums(real[whole:], 1, library))
    return library.joined([library.joined(sums).sum()])


def _add_sizes(
    found: SideDigest,
    sizes: Sequence[tuple[Piece, _Sizes]],
    peers: int,
    rows: Sequence[Array],
    library: Library,
    *,
    summed: bool,
) -> None:
    """The sizes of all pieces as numbers of a digest, and of the part for each peer."""
    like, none = rows[0], library.reals(rows[0][:0])
    starts = [0, *accumulate(row.shape[0] for row in rows)]
    sums = [(piece, one.sums) for piece, one in sizes]
    squares = [(piece, one.squares) for piece, one in sizes if one.squares is not None]
    if summed:
        found.numbers["sum"] = library.joined([none, *(one for _, one in sums)]).sum()
    if squares:
        found.numbers["squares"] = library.joined([none, *(one for _, one in squares)]).sum()
    counts = [(one.counts, starts[piece.buffer] + piece.start) for piece, one in sizes]
    whole = _added([(library.row([0, 0, 0, _NOWHERE], like), 0), *counts], library)
    assert whole is not None
    found.numbers |= {name: whole[place] for place, name in enumerate(("nan", "plus", "minus", "first"))}
    if peers:
        found.parts = _by_peer(sums, peers, none, library)
        found.squared_parts = _by_peer(squares, peers, none, library)


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
