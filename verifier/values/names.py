"""The name of the tensor in which an element of a call's input lies, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simcoll.core.record import number, text
from simcoll.core.trace import Trace
from simcoll.spec.collectives import spec_of
from simcoll.spec.table import Rooted
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.values.digests import CollectiveValues, RankValues


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The parameters whose gradients are sent together: their names and numbers of elements, in each of the rows."""

    parameters: tuple[tuple[str, int], ...]
    rows: int = 1

    @property
    def elements(self) -> int:
        return self.rows * self._row

    @property
    def _row(self) -> int:
        return sum(count for _, count in self.parameters)

    def at(self, place: int) -> str:
        """The name of the parameter that has the element at a place."""
        place %= max(self._row, 1)
        for name, count in self.parameters:
            if place < count:
                return name
            place -= count
        return ""


def name_of(values: CollectiveValues, one: RankValues, columns: Sequence[GroupColumns]) -> str:
    """Where the first element that is not finite lies in what a rank sent, in words; empty where that is not known."""
    if one.sent is None or one.sent.first < 0:
        return ""
    buffers, place = one.record.call.inputs, one.sent.first
    if len(buffers) > 1:
        for number, buffer in enumerate(buffers):
            if place < buffer.elements:
                return f"tensor {number + 1} of {len(buffers)}"
            place -= buffer.elements
        return ""
    if spec_of(one.record.call).rooted is Rooted.FROM_ROOT:
        # What one rank sends to the others, such as a model's weights, is no gradient, whatever its size.
        return ""
    part = next(
        (
            part
            for group in columns
            if group.group == values.group
            for part in group.parts
            if part.group_rank == one.group_rank
        ),
        None,
    )
    names = set() if part is None else {bucket.at(place) for bucket in _buckets_of(part, values)}
    return f"the gradient of {names.pop()}" if len(names) == 1 and "" not in names else ""


def _buckets_of(part: Part, values: CollectiveValues) -> Iterator[_Bucket]:
    """The buckets that a call may have sent: of its size, after calls of the sizes of the buckets before."""
    for laid_out in _layouts(part.trace, values.group.name, values.sequence):
        for place in range(len(laid_out)):
            sizes = [bucket.elements for bucket in laid_out[: place + 1]]
            if all(_elements(part, values.sequence - back) == size for back, size in enumerate(reversed(sizes))):
                yield laid_out[place]


def _elements(part: Part, sequence: int) -> int | None:
    record = part.at(sequence)
    if record is None or len(record.call.inputs) != 1:
        return None
    return record.call.inputs[0].elements


def _layouts(trace: Trace, group: str, sequence: int) -> Iterator[list[_Bucket]]:
    """The layouts of buckets that may hold for a call of a group: of each model the last one before it that was seen,
    and those after.
    """
    found: dict[int, list[list[_Bucket]]] = {}
    for event in trace.events:
        since, seen = number(event, "since") or 0, number(event, "seen") or 0
        buckets = event.data.get("buckets")
        if (
            event.kind != "buckets"
            or text(event, "group") != group
            or since >= sequence
            or not isinstance(buckets, list)
        ):
            continue
        laid_out = [_bucket(one, number(event, "rows") or 1) for one in buckets]
        known = [one for one in laid_out if one is not None]
        if len(known) == len(laid_out):
            mine = found.setdefault(number(event, "model") or 0, [])
            if seen < sequence:
                mine.clear()
            mine.append(known)
    return (one for mine in found.values() for one in mine)


def _bucket(value: object, rows: int) -> _Bucket | None:
    if not isinstance(value, list):
        return None
    parameters = tuple(
        (one[0], one[1])
        for one in value
        if isinstance(one, (list, tuple)) and len(one) == 2 and isinstance(one[0], str) and type(one[1]) is int
    )
    return _Bucket(parameters, rows) if len(parameters) == len(value) else None
