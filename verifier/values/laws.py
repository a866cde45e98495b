"""Finds the ranks whose results break the law of values of a collective."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, mul, or_, xor
from types import MappingProxyType
from typing import TypeAlias

from simcoll.spec.call import Buffer
from simcoll.spec.collectives import spec_of
from simcoll.spec.value_laws import (
    MASK,
    Summed,
    ValueLaw,
    element_bound,
    folded,
    is_float,
    is_linear,
    may_overflow,
    operator,
    sum_bound,
)
from simcoll.verifier.values.digests import CollectiveValues, Point, SideValues

_EXACT: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"min": min, "max": max, "product": mul, "band": and_, "bor": or_, "bxor": xor, "sum": lambda a, b: a + b}
)
_NOT_SENT = "the elements that came are not those that were sent"
_NOT_REDUCED = "the result is not the {} of the inputs"


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that the values of a call break: ``wrong`` are the group ranks that hold wrong results, empty where the
    digests do not show which of them do; ``text`` describes the error.
    """

    wrong: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class _Judged:
    """The two sides of a call by group rank, and its row's law of values."""

    law: ValueLaw
    inputs: tuple[Buffer, ...]
    buffers: tuple[Buffer, ...]
    operation: str | None
    sent: Mapping[int, SideValues]
    received: Mapping[int, SideValues]

    @property
    def dtype(self) -> str:
        return self.buffers[0].dtype

    def against(self, right: _Right, text: str, part: _RightPart) -> Breach | None:
        """The breach where ``right`` does not hold for the sent values and a result, or None. Where each rank has a
        part of the whole, the results of all ranks count together, and ``part`` judges one rank's result by the digests
        of its parts.
        """
        sent = [*self.sent.values()]
        if not self.law.sent_in_parts:
            wrong = tuple(rank for rank, side in self.received.items() if not right(sent, [side]))
            return Breach(wrong, text) if wrong else None
        if right(sent, [*self.received.values()]):
            return None
        parts = {
            rank: [side.parts[rank] if rank < len(side.parts) else None for side in sent] for rank in self.received
        }
        known = {rank: [one for one in mine if one is not None] for rank, mine in parts.items()}
        if any(len(mine) < len(sent) for mine in known.values()):
            return Breach((), text)
        return Breach(tuple(rank for rank, mine in known.items() if not part(mine, self.received[rank])), text)


_Right: TypeAlias = Callable[[Sequence[SideValues], Sequence[SideValues]], bool]
"""True if the sent values and the results fit."""

_RightPart: TypeAlias = Callable[[Sequence[float], SideValues], bool]
"""True if the digests of the parts that each rank sent to one, and of that one's result, fit."""


def differing_replicas(values: CollectiveValues) -> Breach | None:
    """Ranks that hold other bits than the others, where all must hold the same."""
    law = spec_of(values.ranks[0].record.call).values
    if law is None or not law.replicated:
        return None
    sides = {one.group_rank: one.received for one in values.ranks if one.received and one.received.hash is not None}
    held = {rank: side.hash for rank, side in sides.items()}
    counts = Counter(held.values()).most_common()
    if len(counts) < 2:
        return None
    most, count = counts[0]
    known = wrong_results(values)
    # Where ranks have added their results up, a majority of which none has is no proof against one that was close.
    added = {side.hash for side in sides.values() if side.sum is not None}
    if known is not None and 0 < len(known.wrong) < len(held):
        # Ranks of which several hold the same error may have it from one of those of whose sums nothing is known.
        right = {rank for rank, side in sides.items() if side.sum is not None} - {*known.wrong}
        errors = [held[rank] for rank in known.wrong if rank in held]
        alike = len({*errors}) < len(errors)
        wrong = known.wrong if right or not added or not alike else ()
    elif 2 * count > len(held) and (not added or most in added):
        wrong = tuple(rank for rank, one in held.items() if one != most)
    else:
        wrong = ()
    return Breach(wrong, f"the ranks hold {len(counts)} different results, which must be equal bit for bit")


def wrong_results(values: CollectiveValues) -> Breach | None:
    """Results that the row's meaning does not make of the inputs."""
    judged = _judged(values)
    if judged is None:
        return None
    if not judged.law.reduced:
        return judged.against(_balanced("hash", MASK), _NOT_SENT, _part_of("hash", MASK))
    operation, dtype = judged.operation, judged.dtype
    if operation is None:
        return None
    text = _NOT_REDUCED.format(operation)
    found = None
    if is_linear(True, operation, dtype):
        mask = _mask(dtype)
        found = judged.against(_balanced("linear", mask), text, _part_of("linear", mask))
    elif folded(operation, dtype) is not None:
        fold = _folded(operation, _mask(dtype) if operation == "product" else None)
        found = judged.against(fold, text, _untold)
    elif operation in ("sum", "avg"):
        wrong = _far_apart(judged, averaged=operation == "avg")
        found = None if wrong is None else Breach(wrong, text)
    return found or _wrong_points(judged, operation, text)


def _judged(values: CollectiveValues) -> _Judged | None:
    """The values of a call; None where there is no law for it, or a rank did not write the values of its role."""
    first = values.ranks[0].record.call
    law, buffers = spec_of(first).values, (*first.inputs, *first.outputs)
    if law is None or not buffers:
        return None
    for one in values.ranks:
        call, spec = one.record.call, spec_of(one.record.call)
        roles = spec.sends_inputs(call, one.group_rank), spec.receives(call, one.group_rank)
        if roles != (one.sent is not None, one.received is not None):
            return None
    sent = {one.group_rank: one.sent for one in values.ranks if one.sent is not None}
    received = {one.group_rank: one.received for one in values.ranks if one.received is not None}
    operation = operator(first.reduce_op, buffers[0].dtype) if law.reduced else None
    return _Judged(law, first.inputs, buffers, operation, sent, received) if sent and received else None


def _balanced(name: str, mask: int) -> Callable[[Sequence[SideValues], Sequence[SideValues]], bool]:
    """A check that the weighted sums of the sent and of the received values are equal."""

    def right(sent: Sequence[SideValues], received: Sequence[SideValues]) -> bool:
        both = [[getattr(side, name) for side in sides] for sides in (sent, received)]
        return None in both[0] + both[1] or (sum(both[0]) - sum(both[1])) & mask == 0

    return right


def _folded(operation: str, mask: int | None) -> Callable[[Sequence[SideValues], Sequence[SideValues]], bool]:
    """A check that the reductions of each side's elements to one number are equal; NaNs have no order and pass."""

    def right(sent: Sequence[SideValues], received: Sequence[SideValues]) -> bool:
        if any(side.nan for side in (*sent, *received)):
            return True
        both = [[side.fold for side in sides if side.fold is not None] for sides in (sent, received)]
        if (len(both[0]), len(both[1])) != (len(sent), len(received)):
            return True
        one, other = (reduce(_EXACT[operation], folds) for folds in both)
        return one == other if mask is None else (int(one) - int(other)) & mask == 0

    return right


def _part_of(name: str, mask: int) -> _RightPart:
    def right(parts: Sequence[float], received: SideValues) -> bool:
        held = getattr(received, name)
        return held is None or (sum(map(int, parts)) - held) & mask == 0

    return right


def _untold(parts: Sequence[float], received: SideValues) -> bool:
    """True: the digests of one rank's part alone show no error."""
    return True


def _far_apart(judged: _Judged, *, averaged: bool) -> tuple[int, ...] | None:
    """The ranks that hold sums of floats which rounding does not explain, empty where it is not known which; None if
    there are none, as far as there is a bound. Sums that may overflow are not judged.
    """
    sent, ranks = [*judged.sent.values()], len(judged.sent)
    elements, rows = sum(buffer.elements for buffer in judged.inputs), max(len(judged.inputs), 1)
    if not all(side.finite for side in sent):
        return None
    whole = Summed(judged.dtype, ranks, elements, 0.0, averaged, rows)
    if not judged.law.sent_in_parts:
        wrong = [
            rank
            for rank, side in judged.received.items()
            if not _is_close(judged, whole, [one.sum for one in sent], [one.squares for one in sent], side.sum)
        ]
        # Of ranks that hold the same bits not each has added them up.
        same = {judged.received[rank].hash for rank in wrong} - {None}
        return tuple(rank for rank, side in judged.received.items() if rank in wrong or side.hash in same) or None
    part = replace(whole, elements=-(-elements // ranks), rows=-(-rows // ranks))
    if all(len(side.parts) == len(side.squared_parts) == ranks for side in sent):
        wrong = [
            rank
            for rank, side in judged.received.items()
            if not _is_close(
                judged, part, [one.parts[rank] for one in sent], [one.squared_parts[rank] for one in sent], side.sum
            )
        ]
        return tuple(wrong) or None
    results = _known([side.sum for side in judged.received.values()])
    total = None if results is None else _total(results)
    every = replace(part, elements=elements, copies=ranks)
    right = _is_close(judged, every, [one.sum for one in sent], [one.squares for one in sent], total)
    return None if right else ()


def _is_close(
    judged: _Judged,
    of: Summed,
    sums: Sequence[float | None],
    squares: Sequence[float | None],
    result: float | None,
) -> bool:
    """True if a result's sum is that of the inputs within rounding, or one of them, or the bound, is not known."""
    terms, sizes = _known(sums), _known(squares)
    if terms is None or sizes is None or result is None:
        return True
    size = sum(sizes)
    if size < 0:
        # No black box of simcoll's has it; a damaged one may.
        return True
    largest = _known([side.largest for side in judged.sent.values()])
    bound = sum_bound(replace(of, squares=size)) if math.isfinite(size) else None
    overflows = may_overflow(judged.dtype, sum(largest) if largest is not None else math.sqrt(of.ranks * size))
    total = _total(terms)
    if bound is None or overflows or not math.isfinite(total):
        return True
    share = of.ranks if of.averaged else 1
    return math.isfinite(result) and abs(result * share - total) <= bound


def _total(terms: Iterable[float]) -> float:
    """The sum of numbers; infinite where it may be beyond the largest one, NaN where infinities cancel."""
    try:
        return math.fsum(terms)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan


def _known(numbers: Sequence[float | None]) -> list[float] | None:
    """Numbers, or None where one is not known."""
    found = [number for number in numbers if number is not None]
    return found if len(found) == len(numbers) else None


def _wrong_points(judged: _Judged, operation: str, text: str) -> Breach | None:
    """Elements that are not the reduction of the inputs' at the same place."""
    sent = [side.points for side in judged.sent.values()]
    if judged.law.sent_in_parts:
        results = [[(rank, point) for rank, side in judged.received.items() for point in side.points]]
    else:
        results = [[(rank, point) for point in side.points] for rank, side in judged.received.items()]
    wrong = {
        rank: None
        for points in results
        if len({len(points), *map(len, sent)}) == 1
        for place, (rank, point) in enumerate(points)
        if not _right_point(judged.dtype, operation, [side[place] for side in sent], point)
    }
    return Breach(tuple(wrong), text) if wrong else None


def _right_point(dtype: str, operation: str, inputs: Sequence[Point], result: Point) -> bool:
    for place, value in enumerate(result):
        terms = [point[place] if place < len(point) else None for point in inputs]
        known = [term for term in terms if term is not None]
        if len(known) < len(terms) or (value is None and not is_float(dtype)):
            continue
        if not _right_number(dtype, operation, known, value):
            return False
    return True


def _right_number(dtype: str, operation: str, terms: Sequence[float], value: float | None) -> bool:
    if not is_float(dtype):
        whole = reduce(_EXACT[operation], terms)
        mask = _mask(dtype) if operation in ("sum", "product") else MASK
        return (int(whole) - int(value or 0)) & mask == 0
    if operation in ("min", "max"):
        return value == reduce(_EXACT[operation], terms)
    if operation == "product":
        return _right_product(dtype, terms, value)
    size, averaged = _total(map(abs, terms)), operation == "avg"
    bound = element_bound(dtype, len(terms), size, averaged=averaged)
    if bound is None or may_overflow(dtype, size):
        return True
    return value is not None and abs(value * (len(terms) if averaged else 1) - _total(terms)) <= bound


def _right_product(dtype: str, terms: Sequence[float], value: float | None) -> bool:
    """True if a product is right within rounding, or some order of its factors may leave the dtype's range."""
    over = math.prod(max(abs(term), 1.0) for term in terms)
    under = math.prod(min(abs(term), 1.0) for term in terms)
    bound = element_bound(dtype, len(terms), over)
    if dtype.startswith("complex") or bound is None or may_overflow(dtype, over) or under == 0.0:
        return True
    return value is not None and abs(value - math.prod(terms)) <= bound


def _mask(dtype: str) -> int:
    """The numbers that a dtype can hold, as a mask of bits."""
    width = Buffer((1,), dtype).bytes
    return MASK if width is None else (1 << 8 * width) - 1
