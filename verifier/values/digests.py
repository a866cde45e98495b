"""The digests of values that ranks wrote down, read without trust."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from simcoll.core.record import Group, Record, State, number
from simcoll.core.trace import Trace
from simcoll.spec.collectives import COLLECTIVES, spec_of
from simcoll.spec.value_laws import MASK, judged
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.findings.finding import Side, lines

_INTEGERS = frozenset({"hash", "linear", "nan", "plus", "minus", "first"})
_FLOATS = frozenset({"sum", "squares", "largest"})

Point = tuple["int | float | None", ...]
"""The numbers of one element: two of a complex one; None for one that is not finite."""


@dataclass(frozen=True, slots=True)
class SideValues:
    """One side of a rank's call.

    ``hash`` is the weighted sum of hashes of its elements, ``linear`` that of the elements themselves, ``fold`` their
    reduction to one number. For floats ``sum`` is the sum with a sign for each place, ``squares`` that of the squares,
    infinite where they are, ``largest`` the largest magnitude of float16; ``nan``, ``plus`` and ``minus`` count the
    NaNs and the infinities, the first of which is element ``first`` of all buffers. ``points`` are the elements at the
    selected places, ``parts`` is the ``hash``, ``linear`` or ``sum`` of the part sent to each member alone,
    ``squared_parts`` its ``squares``, where the rank wrote them. None stands for a field that was not written.
    """

    hash: int | None = None
    linear: int | None = None
    fold: float | None = None
    sum: float | None = None
    squares: float | None = None
    largest: float | None = None
    nan: int = 0
    plus: int = 0
    minus: int = 0
    first: int = -1
    points: tuple[Point, ...] = ()
    parts: Point = ()
    squared_parts: Point = ()

    @property
    def finite(self) -> bool:
        """True if all elements are finite numbers, as far as is known."""
        return not (self.nan or self.plus or self.minus)


@dataclass(frozen=True, slots=True)
class RankValues:
    """The values of one rank's call, the round of the rank's search for a scale of its losses, if it wrote one,
    whether the model makes the call: torch's layers, wrappers and optimizers, or a backward pass; whether the rank left
    out calls beside it; and how often it had cleared gradients.
    """

    group_rank: int
    record: Record
    sent: SideValues | None
    received: SideValues | None
    scaling: int | None = None
    of_model: bool = False
    sampled: bool = False
    cleared: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveValues:
    """The values of one collective, of all ranks of its group, by group rank."""

    group: Group
    sequence: int
    ranks: tuple[RankValues, ...]

    @property
    def began_ns(self) -> int:
        """The time at which the first rank made the call."""
        return min(one.record.scheduled_ns for one in self.ranks)

    @property
    def reduced(self) -> bool:
        """True if the call reduces elements of several ranks."""
        law = spec_of(self.ranks[0].record.call).values
        return law is not None and law.reduced

    def global_ranks(self, group_ranks: Iterable[int]) -> tuple[int, ...]:
        """Group ranks as global ones, in order."""
        return tuple(sorted(self.group.ranks[rank] for rank in group_ranks))

    def sides(self, note: Callable[[RankValues], str]) -> list[Side]:
        """The ranks of the call by the sentence on them."""
        ordered = sorted(self.ranks, key=lambda one: (note(one), one.group_rank))
        sides = []
        for text, same in groupby(ordered, key=note):
            ranks = [*same]
            named = [(self.group.ranks[one.group_rank], one.record.source) for one in ranks]
            sides.append(Side(tuple(sorted(rank for rank, _ in named)), ranks[0].record.call, lines(named), text))
        return sorted(sides, key=lambda side: side.ranks)


def digested_calls(columns: Sequence[GroupColumns]) -> list[CollectiveValues]:
    """The collectives of which all ranks of the group wrote down values and that completed everywhere, by time."""
    known: dict[int, WrittenValues] = {}
    found = [values for group in columns if _is_whole(group) for values in _of_group(group, known)]
    return sorted(found, key=lambda one: one.began_ns)


def _is_whole(columns: GroupColumns) -> bool:
    """True if there is one record of each member."""
    return sorted(part.group_rank for part in columns.parts) == [*range(len(columns.group.ranks))]


Written = tuple["SideValues | None", "SideValues | None", "int | None", bool, bool, int]
"""What was sent and received by a call, the round of the search for a scale of losses, whether it is of the model,
whether it is one of a sample, and how often gradients had been cleared.
"""

WrittenValues = Mapping[int, Mapping[int, Written]]
"""A rank's digests by the index of its groups, and by the sequence of their calls."""


def written_values(trace: Trace) -> WrittenValues:
    """What a rank wrote down of both sides of its calls."""
    found: dict[int, dict[int, Written]] = {}
    for event in trace.events:
        group, sequence = (number(event, name) for name in ("group", "sequence"))
        if event.kind == "values" and group is not None and sequence is not None:
            sides = _side(event.data.get("sent")), _side(event.data.get("received"))
            of_model, sampled = (event.data.get(name) is True for name in ("of_model", "sampled"))
            found.setdefault(group, {})[sequence] = (
                *sides,
                number(event, "scaling"),
                of_model,
                sampled,
                number(event, "cleared") or 0,
            )
    return found


def _of_group(columns: GroupColumns, known: dict[int, WrittenValues]) -> Iterable[CollectiveValues]:
    parts = sorted(columns.parts, key=lambda part: part.group_rank)
    written = []
    for part in parts:
        if id(part.trace) not in known:
            known[id(part.trace)] = written_values(part.trace)
        index = int(part.trace.slots["group"][part.rows[0]]) if len(part.rows) and known[id(part.trace)] else -1
        mine = known[id(part.trace)].get(index)
        if not mine:
            return
        written.append(mine)
    common = set(written[0]).intersection(*written[1:])
    # Traces keep their calls, a few objects for many records.
    alike: dict[tuple[int, ...], bool] = {}
    for sequence in sorted(common):
        ranks = [_rank_values(part, sequence, each[sequence]) for part, each in zip(parts, written, strict=True)]
        whole = tuple(one for one in ranks if one is not None)
        if len(whole) < len(parts):
            continue
        calls = tuple(id(one.record.call) for one in whole)
        if calls not in alike:
            alike[calls] = _are_one_call(whole)
        if alike[calls]:
            yield CollectiveValues(columns.group, sequence, whole)


def _rank_values(part: Part, sequence: int, written: Written) -> RankValues | None:
    record = part.at(sequence)
    if record is None or record.state is not State.COMPLETED or record.call.op not in COLLECTIVES:
        return None
    return RankValues(part.group_rank, record, *written)


def _are_one_call(ranks: Sequence[RankValues]) -> bool:
    """True if the ranks state the same, in memory of the same order: otherwise other rules apply, or none."""
    size, first = len(ranks), ranks[0].record.call
    spec = spec_of(first)
    if spec.values is None or any(one.record.call.op != first.op for one in ranks):
        return False
    said = {spec.statement(one.record.call, one.group_rank, size) for one in ranks}
    orders = {buffer.order for one in ranks for buffer in (*one.record.call.inputs, *one.record.call.outputs)}
    return len(said) == 1 and len(orders) <= 1 and all(judged(spec.values, one.record.call) for one in ranks)


def _side(value: object) -> SideValues | None:
    if not isinstance(value, dict):
        return None
    whole: dict[str, int | None] = {name: value[name] for name in _INTEGERS if type(value.get(name)) is int}
    reals = {name: _real(value[name]) for name in _FLOATS if name in value}
    fold, points = value.get("fold"), value.get("points")
    return SideValues(
        _modular(whole.get("hash")),
        _modular(whole.get("linear")),
        fold if type(fold) in (int, float) else None,
        reals.get("sum"),
        reals.get("squares"),
        reals.get("largest"),
        whole.get("nan") or 0,
        whole.get("plus") or 0,
        whole.get("minus") or 0,
        -1 if (first := whole.get("first")) is None else first,
        tuple(map(_point, points)) if isinstance(points, list) else (),
        _point(value["parts"]) if "parts" in value else (),
        _point(value["squared_parts"]) if "squared_parts" in value else (),
    )


def _modular(value: int | None) -> int | None:
    return None if value is None else value & MASK


def _real(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e308 else math.inf


def _point(value: object) -> Point:
    numbers = value if isinstance(value, list) else [None]
    return tuple([one if type(one) in (int, float) else None for one in numbers])
