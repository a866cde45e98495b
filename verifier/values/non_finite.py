"""SC901: the first call into which a rank put NaN or an infinity.

Infinities and NaNs are often intended. These are not reported:

* infinities in a minimum or a maximum, of which they are the neutral elements;
* infinities that are only moved (masks, tables of logarithms);
* NaNs that stand for missing numbers: that are only moved, and without which later reductions go on
  (:func:`_missing_numbers`);
* infinities of one sign, as many from every rank, without NaNs: a mask; or from one rank in all calls of a line, after
  the first of which the next sum is finite (:func:`_masks`);
* values that all ranks send in the first calls of a line, until they are finite: whoever looks for a scale by himself;
* values of a program with loss scaling while it looks for its scale: in a later round all calls of the same line, of
  the same rank, are finite again; and a rank has made a GradScaler, or reduces a tensor of float16, or takes the
  maximum of one float, as of found_inf. With a GradScaler, which skips such a step, the job may also end meanwhile:
  after at most ``_RECOVERING`` such rounds of the line, or ``_SEARCHING`` where it has been so from its first call on
  and all ranks overflow in all but ``_RECOVERING`` of them. A round ends where the scaler looks at the gradients, which
  the ranks write down; without a scaler each call is one.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Source
from simcoll.core.trace import Trace
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.table import Rooted
from simcoll.spec.value_laws import is_float, operator
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import NON_FINITE_INPUT
from simcoll.verifier.values.digests import CollectiveValues, RankValues, SideValues
from simcoll.verifier.values.names import name_of

_RECOVERING = 2
_SEARCHING = 40
"""Rounds that overflow before a scale that is too large is found: each halves it, and few begin above 2^32."""

_FEW = 8
"""Elements of a broadcast below which it is taken for one of results, such as the best loss so far."""


def non_finite(
    calls: Sequence[CollectiveValues], scaled: bool, columns: Sequence[GroupColumns]
) -> list[tuple[int, Finding]]:
    """The finding on the first call into which a rank put values that are not finite, without having received such
    values before, and its time. ``scaled``: a rank has made a GradScaler.
    """
    tainted: set[int] = set()
    suspects = [_suspects(values) for values in calls]
    meant = _Meant(calls, suspects, scaled)
    for place, values in enumerate(calls):
        bad = [one for one in suspects[place] if not meant.is_intended(values, one)]
        fresh = [one for one in bad if values.group.ranks[one.group_rank] not in tainted]
        if fresh:
            if not all(meant.is_searched(place, values, one) for one in fresh):
                told = any(_had_messages(calls[:place], values, one, columns) for one in fresh)
                return [(values.began_ns, _non_finite_finding(values, fresh, columns, by_message=told))]
            if scaled:
                continue
        if bad:
            tainted |= {values.group.ranks[one.group_rank] for one in values.ranks if one.received is not None}
    return []


class _Meant:
    """What is meant of a job's values that are not finite, as far as that follows from its other calls: worked out when
    it is first asked for, as most jobs have no such values.
    """

    def __init__(self, calls: Sequence[CollectiveValues], suspects: _Suspects, scaled: bool) -> None:
        self._calls = calls
        self._suspects = suspects
        self._scaled = scaled

    def is_intended(self, values: CollectiveValues, one: RankValues) -> bool:
        """True if the NaNs that a rank sent stand for missing numbers, or its infinities are a mask."""
        return _line(values.group, one) in (self._masks if _is_reduced(values) else self._missing)

    def is_searched(self, place: int, values: CollectiveValues, one: RankValues) -> bool:
        """True if the values belong to the rank's search for a scale of its losses."""
        search = self._searches.get(_line(values.group, one))
        return search is not None and search.explains(place)

    @functools.cached_property
    def _searches(self) -> dict[_Line, _Search]:
        looks = self._scaled or any(map(_looks_scaled, self._calls))
        rounds = _rounds(self._calls, self._suspects)
        return {
            line: _search(of_line, scaled=self._scaled) if looks else _own_search(of_line)
            for line, of_line in rounds.items()
        }

    @functools.cached_property
    def _masks(self) -> set[_Line]:
        return _masks(self._calls, self._suspects)

    @functools.cached_property
    def _missing(self) -> set[_Line]:
        broken = [
            {
                one.group_rank
                for one in self._suspects[place]
                if one.sent is not None and one.sent.nan and not self.is_searched(place, values, one)
            }
            for place, values in enumerate(self._calls)
        ]
        return _missing_numbers(self._calls, broken)


_Suspects: TypeAlias = "Sequence[list[RankValues]]"
"""For each call the ranks that sent values that are not finite, unless the call is meant to carry them."""


def _suspects(values: CollectiveValues) -> list[RankValues]:
    """The ranks that sent values that are not finite, unless the call is meant to carry them."""
    sent = [one.sent for one in values.ranks if one.sent is not None]
    call = values.ranks[0].record.call
    additive = _is_reduced(values) and operator(call.reduce_op, "float32") not in ("min", "max")
    masked = len(sent) > 1 and len({(side.plus, side.minus) for side in sent}) == 1
    infinite = additive and not masked
    return [
        one
        for one in values.ranks
        if one.sent is not None and (one.sent.nan or (infinite and (one.sent.plus or one.sent.minus)))
    ]


_Line = tuple[Group, int, Source, Call]


def _line(group: Group, one: RankValues) -> _Line:
    """The calls that one rank makes alike at one line."""
    return group, one.group_rank, one.record.source, one.record.call


def _masks(calls: Sequence[CollectiveValues], suspects: _Suspects) -> set[_Line]:
    """The lines at which a rank adds a mask: it sends infinities of one sign in each of several calls, and the next sum
    of other floats is finite. Who calculates with other infinities gets NaN.
    """
    masks: dict[_Line, bool] = {}
    times: Counter[_Line] = Counter()
    found: set[_Line] = set()
    for place, values in enumerate(calls):
        for line, one in _senders(values) if _is_reduced(values) else ():
            masks[line] = masks.get(line, True) and one in suspects[place] and _is_mask(one.sent)
            times[line] += 1
    several = {line for line, mask in masks.items() if mask and times[line] > 1}
    waiting: set[_Line] = set()
    for place, values in enumerate(calls if several else ()):
        lines = {line for line, _ in _senders(values)} & several
        waiting |= lines - found
        if not lines and _adds_floats(values):
            found |= waiting if not suspects[place] else set()
            several -= waiting
            waiting = set()
    return found


def _is_mask(side: SideValues | None) -> bool:
    return side is not None and not side.nan and bool(side.plus) != bool(side.minus)


def _adds_floats(values: CollectiveValues) -> bool:
    return _is_reduced(values) and any(one.sent is not None and one.sent.sum is not None for one in values.ranks)


def _missing_numbers(calls: Sequence[CollectiveValues], broken: Sequence[set[int]]) -> set[_Line]:
    """The lines at which NaNs stand for missing numbers: ranks send them, but do not calculate with them. ``broken``:
    for each call the group ranks that sent NaN.

    NaNs of weights, activations and gradients reach a reduction soon: the next call of its line has them. Where that is
    so nothing is excused. Results that the program gathers, and short ones that it broadcasts, need no other evidence.
    At all other lines NaNs have to be sent more than once, and finite floats to be reduced afterwards; and what a model
    broadcasts, its weights and buffers, always has numbers.
    """
    first, times = _first_sent(calls, broken)
    found: set[_Line] = set()
    spread: set[_Line] = set()
    whole = False
    for place, values in reversed([*enumerate(calls)]):
        if _is_reduced(values):
            bad = broken[place]
            for line, one in _senders(values):
                (spread.add if one.group_rank in bad else spread.discard)(line)
            whole |= not bad and _adds_floats(values)
        elif not spread:
            here = first.get(place, ())
            found |= {line for line, one in here if _is_result(one) or (whole and times[line] > 1 and _is_shared(one))}
    return found


def _first_sent(
    calls: Sequence[CollectiveValues], broken: Sequence[set[int]]
) -> tuple[dict[int, list[tuple[_Line, RankValues]]], Counter[_Line]]:
    """The lines that have moved NaNs, by the place of the first such call, and how many of their calls did."""
    first: dict[int, list[tuple[_Line, RankValues]]] = {}
    times: Counter[_Line] = Counter()
    for place, values in enumerate(calls):
        if broken[place] and not _is_reduced(values):
            for line, one in _senders(values):
                if one.group_rank in broken[place]:
                    if line not in times:
                        first.setdefault(place, []).append((line, one))
                    times[line] += 1
    return first, times


def _senders(values: CollectiveValues) -> Iterator[tuple[_Line, RankValues]]:
    return ((_line(values.group, one), one) for one in values.ranks if one.sent is not None)


def _is_result(one: RankValues) -> bool:
    """True if the program itself gathers what a rank sends, or broadcasts a few numbers, as it does with results."""
    law = spec_of(one.record.call).values
    if law is None or one.of_model or law.sent_in_parts:
        return False
    return law.received_in_parts or sum(buffer.elements for buffer in one.record.call.inputs) < _FEW


def _is_shared(one: RankValues) -> bool:
    """True if what a rank sends may be data that ranks share, and not the weights and buffers of a model."""
    return not (one.of_model and spec_of(one.record.call).rooted is Rooted.FROM_ROOT)


@dataclass(slots=True)
class _Round:
    """The calls that a rank makes at one line in one round of its search for a scale: the place of the last, whether
    all are finite, and whether at one of them no rank sent finite values.
    """

    scaling: int | None
    last: int
    finite: bool = True
    none: bool = False


@dataclass(frozen=True, slots=True)
class _Search:
    """What a rank's rounds at one line say of its search for a scale: the place of the last round without infinities
    and NaNs, and whether those after it are of a search that the end of the job cut short.
    """

    found: int
    cut_short: bool

    def explains(self, place: int) -> bool:
        """True if the values of a call of the line that are not finite belong to the search."""
        return self.cut_short or place < self.found


def _rounds(calls: Sequence[CollectiveValues], suspects: _Suspects) -> dict[_Line, list[_Round]]:
    """The rounds of each line."""
    rounds: dict[_Line, list[_Round]] = {}
    for place, values in enumerate(calls):
        bad = {one.group_rank for one in suspects[place]}
        none = not any(one.sent is not None and one.sent.finite for one in values.ranks)
        for one in values.ranks:
            if one.sent is None:
                continue
            of_line = rounds.setdefault(_line(values.group, one), [])
            if one.scaling is None or not of_line or of_line[-1].scaling != one.scaling:
                of_line.append(_Round(one.scaling, place))
            current = of_line[-1]
            current.last = place
            current.finite &= one.group_rank not in bad
            current.none |= none
    return rounds


def _own_search(rounds: Sequence[_Round]) -> _Search:
    """The search of a program that shows no scaler: all ranks overflow in its first rounds, and then none does."""
    found = next((one for one in rounds if not one.none), None)
    return _Search(found.last if found is not None and found.finite else -1, cut_short=False)


def _search(rounds: Sequence[_Round], *, scaled: bool) -> _Search:
    found = max((one.last for one in rounds if one.finite), default=-1)
    rest = [one for one in rounds if one.last > found]
    most = _SEARCHING if found < 0 else _RECOVERING
    few = sum(not one.none for one in rest) <= _RECOVERING
    return _Search(found, scaled and few and len(rest) <= most)


def _is_reduced(values: CollectiveValues) -> bool:
    law = spec_of(values.ranks[0].record.call).values
    return law is not None and law.reduced


def _looks_scaled(values: CollectiveValues) -> bool:
    call = values.ranks[0].record.call
    buffers = call.inputs
    law = spec_of(call).values
    if law is None or not law.reduced or not buffers:
        return False
    one_float = len(buffers) == 1 and buffers[0].elements == 1 and "float" in buffers[0].dtype
    return buffers[0].dtype == "float16" or (one_float and operator(call.reduce_op, buffers[0].dtype) == "max")


def _had_messages(
    earlier: Sequence[CollectiveValues], values: CollectiveValues, one: RankValues, columns: Sequence[GroupColumns]
) -> bool:
    """True if a rank has received floats from another one by a message since its last reduction of finite values: they
    are not looked at, and may have brought what it sends.
    """
    rank = values.group.ranks[one.group_rank]
    since = next(filter(None, (_reduced_finite_ns(call, rank) for call in reversed(earlier))), 0)
    traces = {id(part.trace): part.trace for group in columns for part in group.parts if part.trace.rank == rank}
    return any(_received(trace, since, one.record.scheduled_ns) for trace in traces.values())


def _reduced_finite_ns(values: CollectiveValues, rank: int) -> int | None:
    """When a rank made a call, if it reduces floats, and the rank's are finite."""
    mine = (one for one in values.ranks if values.group.ranks[one.group_rank] == rank and _is_reduced(values))
    finite = (one for one in mine if one.sent is not None and one.sent.sum is not None and one.sent.finite)
    return next((one.record.scheduled_ns for one in finite), None)


def _received(trace: Trace, since_ns: int, until_ns: int) -> bool:
    """True if a receive of floats ended in a time."""
    ends, messages = trace.slots["finished_ns"], trace.slots["p2p_sequence"] > 0
    calls = trace.slots["signature"][messages & (ends > since_ns) & (ends <= until_ns)]
    return any(is_float(one.dtype) for index in set(calls.tolist()) for one in trace.signatures[index].outputs)


def _non_finite_finding(
    values: CollectiveValues, bad: Sequence[RankValues], columns: Sequence[GroupColumns], *, by_message: bool
) -> Finding:
    call = values.ranks[0].record.call
    senders = [one for one in values.ranks if one.sent is not None]
    culprits = values.global_ranks(one.group_rank for one in bad)
    who = ranks_text(culprits)
    names = {name_of(values, one, columns) for one in bad}
    where = f", the first in {names.pop()}" if len(names) == 1 and "" not in names else ""
    what = _what(one.sent for one in bad)
    message = f"{who} put {what} into {call.op}{where}: no collective before had brought it any"
    if by_message:
        message += "; a message, whose values are not looked at, may have"
    return NON_FINITE_INPUT.finding(
        message,
        group=values.group,
        sequence=values.sequence,
        ranks=values.group.ranks,
        culprits=culprits if not by_message and (len(bad) < len(senders) or len(senders) == 1) else (),
        sides=values.sides(lambda one: f"sent {_what([one.sent])}" if one in bad else ""),
    )


def _what(sides: Iterable[SideValues | None]) -> str:
    known = [side for side in sides if side is not None]
    nan, infinite = sum(side.nan for side in known), sum(side.plus + side.minus for side in known)
    parts = [f"{count:,} {name}" for count, name in ((nan, "NaN"), (infinite, "infinite")) if count]
    return " and ".join(parts) + (" elements" if nan + infinite > 1 else " element")
