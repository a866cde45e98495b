"""The laws of values: relations of a collective's outputs to its inputs, by digests that each rank computes by itself.

A :class:`ValueLaw` states the parts of a rank's row of elements that go to, or come from, each peer, and whether
elements of several ranks are reduced. Sums of a rank's digests must give the digests of what other ranks received:

* moved elements by a sum of hashes, each times an odd weight for its place, modulo 2^64;
* sums of integers by the same sum over the elements themselves, which is linear, modulo 2^width;
* minimum, maximum, products and bits of integers by the reduction of a rank's elements to one;
* sums of floats, each with a sign that follows from its place, within a bound on rounding (K.-H. Huang, J. A. Abraham,
  Algorithm-Based Fault Tolerance for Matrix Operations, IEEE Transactions on Computers C-33 (6), 1984);
* every reduction element by element at a few places that the call's position selects (:func:`spots`).

This module imports neither numpy nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from simcoll.spec import flows
from simcoll.spec.call import SPARSE, UNEQUAL, Buffer, Call

MASK: Final = (1 << 64) - 1

SPOTS: Final = 8
"""Elements of a reduction that are compared one by one."""

SPOTS_ALONE: Final = 24
"""Where each element is on one rank alone: of an eighth that is lost all of them miss with a chance of 4 %."""

MOST_PARTS: Final = 64
"""Members of a group up to which a rank writes down digests of the part for each, which show a wrong receiver."""

SUMMED_BLOCK: Final = 1 << 16
SUMMED_TOGETHER: Final = 4
"""Floats that are summed as one block, and those among them that share a sign: a fourth of a block apart."""

_CERTAIN: Final = 9.0
"""Standard deviations that a sum with random signs leaves with a chance of 2 exp(-81 / 2), less than 1e-17."""

_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_SMALLEST = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
_LARGEST = {"float64": 2.0**1023, "float32": 2.0**127, "float16": 2.0**15, "bfloat16": 2.0**127}
_REAL = {"complex64": "float32", "complex128": "float64"}

_OF_BOOL = {"sum": "max", "bor": "max", "product": "min", "band": "min"}
"""The operations that add, or multiply, truth values."""

_INTEGERS = frozenset({f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)})
"""With which computers calculate: others are only moved."""

_EXACT = frozenset({"min", "max", "product", "band", "bor", "bxor"})


@dataclass(frozen=True, slots=True)
class ValueLaw:
    """The law of one row: ``sent`` and ``received`` say whether a rank's row of elements has a part for (from) each
    peer, or is one whole; ``reduced`` whether parts for one place are reduced; ``replicated`` whether all ranks that
    receive must hold the same bits.
    """

    sent_in_parts: bool = False
    received_in_parts: bool = False
    reduced: bool = False
    replicated: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive elements of one buffer: ``rows`` of ``count`` elements, one for each of ``peers``.

    ``place`` is the offset of each row in the elements that the sender, or the receiver, has for this peer.
    """

    buffer: int
    start: int
    peers: tuple[int, ...]
    count: int
    place: int


def judged(law: ValueLaw, call: Call) -> bool:
    """True if the values of a call follow the law as it stands; sparse and uneven lists do not."""
    return call.form not in (SPARSE, UNEQUAL) and all(buffer.bytes is not None for buffer in _all(call))


def _all(call: Call) -> tuple[Buffer, ...]:
    return (*call.inputs, *call.outputs)


def pieces(law: ValueLaw, call: Call, buffers: Sequence[Buffer], group_size: int, *, sent: bool) -> Iterator[Piece]:
    """The pieces of one side of a call, in the order of its elements."""
    if not (law.sent_in_parts if sent else law.received_in_parts):
        place = 0
        for number, buffer in enumerate(buffers):
            yield Piece(number, 0, (0,), buffer.elements, place)
            place += buffer.elements
    elif call.coalesced:
        yield from _coalesced(buffers, len(call.inputs if not sent else call.outputs), group_size)
    else:
        yield from _parts(buffers, call.input_splits if sent else call.output_splits, group_size)


def _coalesced(buffers: Sequence[Buffer], tensors: int, group_size: int) -> Iterator[Piece]:
    """One buffer of equal parts for each tensor, or a buffer for each rank and tensor."""
    place = 0
    if len(buffers) == tensors:
        for number, buffer in enumerate(buffers):
            count = buffer.elements // group_size
            yield Piece(number, 0, tuple(range(group_size)), count, place)
            place += count
        return
    for number, buffer in enumerate(buffers):
        peer, tensor = divmod(number, max(tensors, 1))
        place = place if tensor else 0
        yield Piece(number, 0, (peer,), buffer.elements, place)
        place += buffer.elements


def _parts(buffers: Sequence[Buffer], splits: tuple[int, ...] | None, group_size: int) -> Iterator[Piece]:
    sizes = flows.parts(buffers, splits, group_size)
    if len(buffers) != 1:
        for peer in range(len(buffers)):
            yield Piece(peer, 0, (peer,), sizes[peer], 0)
    elif not splits:
        yield Piece(0, 0, tuple(range(group_size)), sizes[0], 0)
    else:
        start = 0
        for peer in range(len(splits)):
            yield Piece(0, start, (peer,), sizes[peer], 0)
            start += sizes[peer]


def salt(law: ValueLaw, sender: int, receiver: int) -> int:
    """The odd factor of the data that one group rank sends another, which tells parts that change places apart."""
    key = (sender + 1 if law.received_in_parts else 0) << 32 | (receiver + 1 if law.sent_in_parts else 0)
    return mixed(key) | 1


def mixed(value: int) -> int:
    """A number of 64 bits that looks random (the finaliser of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def spots(sequence: int, elements: int, most: int = SPOTS) -> list[int]:
    """The places, in a row of so many elements, at which the reduction of a position is compared; alike on all ranks.

    All of them where the row is no longer than ``most``.
    """
    if elements <= most:
        return list(range(elements))
    return sorted({mixed(sequence * most + number) % elements for number in range(most)})


def operator(reduce_op: str | None, dtype: str) -> str | None:
    """The reduction as it acts on values of a dtype; None where its result is not laid down (an average of integers is
    cut, the factor of ``premul_sum`` is no part of the call), or digests of 64 signed bits cannot follow it.
    """
    if dtype == "bool":
        return _OF_BOOL.get(reduce_op or "", reduce_op) if reduce_op in {*_OF_BOOL, "min", "max", "bxor"} else None
    if is_float(dtype):
        return reduce_op if reduce_op in ("sum", "avg", "min", "max", "product") else None
    if dtype == "uint64" and reduce_op in ("min", "max"):
        return None
    return reduce_op if dtype in _INTEGERS and (reduce_op == "sum" or reduce_op in _EXACT) else None


def folded(operation: str | None, dtype: str) -> str | None:
    """The operation that makes one number of all elements, such that it commutes with the reduction; None: there is
    none that is exact.
    """
    if operation == "product" and is_float(dtype):
        return None
    return operation if operation in _EXACT else None


def is_float(dtype: str) -> bool:
    """True if values of a dtype can be infinite, or NaN."""
    return "float" in dtype or "complex" in dtype


def is_linear(reduced: bool, operation: str | None, dtype: str) -> bool:
    """True if the elements themselves are summed with weights: sums of integers."""
    return reduced and operation == "sum" and not is_float(dtype)


def unit_roundoff(dtype: str) -> float | None:
    """The largest relative error of one rounding; None for dtypes whose sums have no bound here (float8)."""
    return _ROUNDOFF.get(_REAL.get(dtype, dtype))


def signs() -> bytes:
    """A bit for each element of a block: whether it counts as it is (1), or negated (0), in a sum of floats."""
    return b"".join(mixed(word).to_bytes(8, "big") for word in range(SUMMED_BLOCK // 64))


@dataclass(frozen=True, slots=True)
class Summed:
    """Floats that are reduced, as sums: ``ranks`` rows of ``elements`` in ``rows`` pieces whose places begin anew, in
    ``copies`` that have the same places; the sum of all their ``squares``, to within 1 %.
    """

    dtype: str
    ranks: int
    elements: int
    squares: float
    averaged: bool = False
    rows: int = 1
    copies: int = 1


def sum_bound(of: Summed) -> float | None:
    """The largest difference that rounding can make between the signed sum of all inputs and that of the results, but
    for a chance of 1e-17; of averages, times the number of ranks. None where no bound is known.

    Each element of a result is rounded ``ranks`` times at most, whatever the order of the additions, or twice more
    where it is scaled to an average (N. J. Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), and
    once for each element that shares its sign before the digests become sums of float64. These errors count with signs
    that do not depend on them, so their sum is bounded by the root of the sum of their squares (W. Hoeffding,
    Probability Inequalities for Sums of Bounded Random Variables, Journal of the American Statistical Association 58,
    1963); the Cauchy-Schwarz inequality has that of the squares of the inputs. Values too small for the dtype, and
    their squares, may be flushed to zero.
    """
    rounding = _rounding(of.dtype, of.ranks, averaged=of.averaged)
    if rounding is None:
        return None
    real = _REAL.get(of.dtype, of.dtype)
    working = "float64" if real == "float64" else "float32"
    rounding += 2 * (SUMMED_TOGETHER - 1) * _ROUNDOFF[working]
    count = max(of.elements, 1)
    alike = of.copies * (SUMMED_TOGETHER * (count // SUMMED_BLOCK) + of.rows)
    size = math.sqrt(of.ranks * (1.01 * of.squares + count * of.ranks * _SMALLEST[working]))
    error = rounding * min(_CERTAIN * math.sqrt(alike), math.sqrt(count)) * size
    digests = 4 * (min(count, SUMMED_BLOCK) + count // SUMMED_BLOCK + of.ranks) * 2.0**-53 * math.sqrt(count) * size
    return error + digests + count * _flushed(real, of.ranks, averaged=of.averaged)


def element_bound(dtype: str, ranks: int, magnitude: float, *, averaged: bool = False) -> float | None:
    """The largest rounding error of one element of a sum, whose terms' absolute values add up to ``magnitude``; of an
    average, times the number of ranks.
    """
    rounding = _rounding(dtype, ranks, averaged=averaged)
    if rounding is None:
        return None
    return magnitude * (rounding + 2.0**-50) + _flushed(_REAL.get(dtype, dtype), ranks, averaged=averaged)


@lru_cache(maxsize=64)
def _rounding(dtype: str, ranks: int, *, averaged: bool) -> float | None:
    """The relative error of an element that is rounded as often as a sum, or an average, of so many is."""
    unit = unit_roundoff(dtype)
    once = None if unit is None else (ranks + 2 * averaged) * unit
    return None if once is None or once >= 0.5 else once / (1 - once)


def _flushed(real: str, ranks: int, *, averaged: bool) -> float:
    """What flushing to zero can take of an element's inputs and its result."""
    return (ranks + 1) * (ranks if averaged else 1) * _SMALLEST[real]


def may_overflow(dtype: str, largest: float) -> bool:
    """True if a sum whose terms' largest magnitudes add up to this may be infinite."""
    return not largest < _LARGEST.get(_REAL.get(dtype, dtype), 0.0)
