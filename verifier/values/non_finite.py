"""SC901: the first call into which a rank put NaN or an infinity.

Infinities and NaNs are often intended. These are not reported:

* infinities in a minimum or a maximum, of which they are the neutral elements;
* infinities that are only moved (masks, tables of logarithms);
* NaNs that stand for missing numbers: that are only moved, and without which later reductions go on
  (:func:`_missing_numbers`); in a sample, which may not have seen these, NaNs that no later reduction carries;
* infinities of one sign, as many from every rank, without NaNs: a mask; or from one rank in all calls of a line, after
  the first of which the next sum is finite (:func:`_masks`); in a sample, which may miss these, infinities of one sign
  unless NaNs, or those of another line, follow;
* one infinity among the few numbers that a program adds up by itself, as a metric that overflows: the next call of its
  line is finite, and no other line had any until then;
* what the program evidently looks at: after such a result of a line all ranks go on with another line than after finite
  ones, of which more follow (:meth:`_Meant.is_answered`);
* gradients that the program mends itself: weights and states of optimizers are finite after the step
  (:meth:`_Meant._is_outlived`);
* what was sent since gradients were cleared, if all ranks of the call clear them again without a step: a program that
  looks at its gradients itself leaves that step out (:func:`_unused`);
* values that all ranks send in the first calls of a line, until they are finite: whoever looks for a scale by himself;
  and what a rank that has received them sends until then, or at lines that recover too;
* values of a program with loss scaling while it looks for its scale: in a later round all calls of the same line, of
  the same rank, are finite again; and a rank has made a GradScaler, or reduces a tensor of float16, or takes the
  maximum of one float, as of found_inf. With a GradScaler, which skips such a step, the job may also end meanwhile:
  after at most ``_RECOVERING`` such rounds of the line, or ``_SEARCHING`` where it has been so from its first call on
  and all ranks overflow in all but ``_RECOVERING`` of them. A round ends where the scaler looks at the gradients, which
  the ranks write down; without a scaler, or with one that is not in use, each call is one. A search that the end cuts
  short has not spoilt the weights.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Source
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.table import Rooted
from simcoll.spec.value_laws import is_float, operator
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import NON_FINITE_INPUT
from simcoll.verifier.values.digests import CollectiveValues, RankValues, SideValues
from simcoll.verifier.values.discards import Discards
from simcoll.verifier.values.messages import may_have_received
from simcoll.verifier.values.names import name_of

_RECOVERING = 2
_SEARCHING = 40
"""Rounds that overflow before a scale that is too large is found: each halves it, and few begin above 2^32."""

_UNUSED = 2
"""So often may gradients be cleared in one round of a scaler: of two optimizers, which it may end together."""

_FEW = 8
"""Elements of a broadcast, or a sum, below which it is taken for one of results, such as the best loss so far."""


def non_finite(
    calls: Sequence[CollectiveValues], scaled: bool, columns: Sequence[GroupColumns]
) -> list[tuple[int, Finding]]:
    """The finding on the first call into which a rank put values that are not finite, without having received such
    values before, and its time. ``scaled``: a rank has made a GradScaler.
    """
    tainted: dict[int, int] = {}
    suspects = [_suspects(values) for values in calls]
    traces = {id(part.trace): part.trace for group in columns for part in group.parts} if any(suspects) else {}
    discards = Discards.of(traces.values())
    meant = _Meant(calls, suspects, scaled, discards)
    for place, values in enumerate(calls):
        bad = [one for one in suspects[place] if not meant.is_intended(place, values, one)]
        searched = {one.group_rank: tainted.get(values.group.ranks[one.group_rank], -1) for one in bad}
        fresh = [one for one in bad if not meant.is_left_over(searched[one.group_rank], place, values, one)]
        if fresh:
            if not all(meant.is_recovered(place, values, one) for one in fresh):
                told = any(may_have_received(calls, place, one, traces.values()) for one in fresh)
                before = any(searched[one.group_rank] >= 0 for one in fresh)
                return [(values.began_ns, _non_finite_finding(values, fresh, columns, by_message=told, before=before))]
            if scaled or discards.span(values) is not None or meant.is_answered(place, values):
                continue
        if bad:
            until = max(*searched.values(), *(meant.search_ends(place, values, one) for one in fresh), -1)
            for one in values.ranks:
                if one.received is not None:
                    rank = values.group.ranks[one.group_rank]
                    tainted[rank] = max(until, tainted.get(rank, -1))
    return []


class _Meant:
    """What is meant of a job's values that are not finite, as far as that follows from its other calls: worked out when
    it is first asked for, as most jobs have no such values.
    """

    def __init__(
        self, calls: Sequence[CollectiveValues], suspects: _Suspects, scaled: bool, discards: Discards
    ) -> None:
        self._calls = calls
        self._suspects = suspects
        self._scaled = scaled
        self._discards = discards

    def is_intended(self, place: int, values: CollectiveValues, one: RankValues) -> bool:
        """True if the NaNs that a rank sent stand for missing numbers, or its infinities are a mask."""
        if not values.reduced:
            unseen = one.sampled and not one.of_model and self._last_sum < place
            return unseen or _line(values.group, one) in self._missing
        if _line(values.group, one) in self._masks or _kind(values.group, one) in self._masks_of_all_sizes:
            return True
        if _is_one_of_few(one) and self._goes_nowhere(place, values, one):
            return True
        return one.sampled and _is_mask(one.sent) and not self._spreads(place, one.record.source)

    def is_recovered(self, place: int, values: CollectiveValues, one: RankValues) -> bool:
        """True if the values belong to the rank's search for a scale of its losses, or were thrown away, or mended, or
        if all ranks then went on in another way.
        """
        line = _line(values.group, one)
        search, unused = self._searches.get(line), self._unused.get(line)
        if search is not None and (place < search.found or (search.cut_short and not self._is_used(values))):
            return True
        if unused is not None and unused.explains(place) and self._discards.span(values) is not None:
            return True
        return self.is_answered(place, values) or self._is_outlived(place, values)

    def _is_outlived(self, place: int, values: CollectiveValues) -> bool:
        """True if a model's gradients were mended: the weights of the ranks that sent them outlived the step, and the
        line is finite later on the others, which may not have seen it, or has no other call.
        """
        if not values.reduced or not all(one.of_model for one in values.ranks):
            return False
        bad = {one.group_rank for one in self._suspects[place]}
        return self._discards.outlived(values, bad) and all(
            one.group_rank in bad
            or self.search_ends(place, values, one) >= 0
            or self._places[False].get(line, [place])[-1] <= place
            for line, one in _senders(values)
        )

    def is_answered(self, place: int, values: CollectiveValues) -> bool:
        """True if the program looks at the results of a line: after this one each rank makes its next call at a line at
        which it makes none after finite results, of which more come later.
        """
        if not values.reduced or any(one.of_model or one.sampled for one in values.ranks):
            return False
        for line, one in _senders(values):
            last, usual = self._followed.get(line, (-1, frozenset()))
            after = self._following.get((values.group.ranks[one.group_rank], place))
            if last < place or after is None or not usual or after in usual:
                return False
        return True

    @functools.cached_property
    def _following(self) -> dict[tuple[int, int], Source]:
        """By rank and place the line of the rank's next call."""
        made: dict[int, list[tuple[int, int, Source]]] = {}
        for place, values in enumerate(self._calls):
            for one in values.ranks:
                rank, record = values.group.ranks[one.group_rank], one.record
                made.setdefault(rank, []).append((record.scheduled_ns, place, record.source))
        return {
            (rank, place): following
            for rank, mine in made.items()
            for (_, place, _), (_, _, following) in pairwise(sorted(mine, key=itemgetter(0, 1)))
        }

    @functools.cached_property
    def _followed(self) -> dict[_Line, tuple[int, frozenset[Source]]]:
        """Of each line the place of its last call that was finite on all ranks, and the lines that follow such."""
        found: dict[_Line, tuple[int, frozenset[Source]]] = {}
        for place, values in enumerate(self._calls):
            for line, one in _senders(values) if not self._suspects[place] else ():
                after = self._following.get((values.group.ranks[one.group_rank], place))
                before = found.get(line, (-1, frozenset()))[1]
                found[line] = place, before if after is None else before | {after}
        return found

    def _goes_nowhere(self, place: int, values: CollectiveValues, one: RankValues) -> bool:
        """True if the next call of a line is finite on its rank, and no other call has sent any else until then."""
        until = self.search_ends(place, values, one)
        here = (bad.record.source == one.record.source and not _nan(bad) for bad in self._suspects[place])
        after = bisect_right(self._bad, place)
        return until >= 0 and all(here) and (after == len(self._bad) or self._bad[after] >= until)

    @functools.cached_property
    def _bad(self) -> list[int]:
        """The places of calls that sent values which are not finite."""
        return [place for place, bad in enumerate(self._suspects) if bad]

    def _is_used(self, values: CollectiveValues) -> bool:
        """True if a step has used what a call of the model carried."""
        return all(one.of_model for one in values.ranks) and self._discards.used(values)

    def search_ends(self, place: int, values: CollectiveValues, one: RankValues) -> int:
        """The place at which the line of a call is finite again on its rank; -1 if it is not."""
        finite = self._places[True].get(_line(values.group, one), [])
        after = bisect_right(finite, place)
        return finite[after] if after < len(finite) else -1

    def is_left_over(self, until: int, place: int, values: CollectiveValues, one: RankValues) -> bool:
        """True if a rank that had values which are not finite by a search that ended ``until`` a place may have these
        from it: they are sent before, or at a line that was not finite before, and is again, or does not last.
        """
        if place < until or until < 0:
            return until >= 0
        bad = self._places[False][_line(values.group, one)]
        recovers = self.search_ends(place, values, one) >= 0
        return bad[0] < until and (recovers or len(bad) - bisect_right(bad, until) <= _RECOVERING)

    @functools.cached_property
    def _places(self) -> dict[bool, dict[_Line, list[int]]]:
        """The places of the calls of each line that were finite on its rank, and of those that were not."""
        places: dict[bool, dict[_Line, list[int]]] = {True: {}, False: {}}
        for place, (values, bad) in enumerate(zip(self._calls, self._suspects, strict=True)):
            broken = {one.group_rank for one in bad}
            for line, one in _senders(values):
                places[one.group_rank not in broken].setdefault(line, []).append(place)
        return places

    def _spreads(self, place: int, source: Source) -> bool:
        """True if NaNs, or infinities from another line, were sent after a call."""
        return any(last > place for (of, nan), last in self._last.items() if nan or of != source)

    @functools.cached_property
    def _last(self) -> dict[tuple[Source, bool], int]:
        """The place of the last call of each line that sent NaNs (true), or only infinities."""
        sent = ((one, place) for place, bad in enumerate(self._suspects) for one in bad)
        return {(one.record.source, one.sent is not None and one.sent.nan > 0): place for one, place in sent}

    @functools.cached_property
    def _last_sum(self) -> int:
        """The place of the last reduction to which a rank sent NaN, or -1."""
        sums = (place for place, bad in enumerate(self._suspects) if self._calls[place].reduced and any(map(_nan, bad)))
        return max(sums, default=-1)

    @functools.cached_property
    def _unused(self) -> dict[_Line, _Search]:
        return _unused(self._calls, self._suspects, self._discards)

    @functools.cached_property
    def _searches(self) -> dict[_Line, _Search]:
        looks = self._scaled or any(map(_looks_scaled, self._calls))
        rounds = _rounds(self._calls, self._suspects)
        return {
            line: _search(of_line, scaled=self._scaled) if looks else _own_search(of_line)
            for line, of_line in rounds.items()
        }

    @functools.cached_property
    def _masks(self) -> set[Hashable]:
        return _masks(self._calls, self._suspects, _line)

    @functools.cached_property
    def _masks_of_all_sizes(self) -> set[Hashable]:
        return _masks(self._calls, self._suspects, _kind)

    @functools.cached_property
    def _missing(self) -> set[_Line]:
        broken = [
            {
                one.group_rank
                for one in self._suspects[place]
                if one.sent is not None and one.sent.nan and not self.is_recovered(place, values, one)
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
    additive = values.reduced and operator(call.reduce_op, "float32") not in ("min", "max")
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


def _kind(group: Group, one: RankValues) -> Hashable:
    """The calls that one rank makes at one line which differ in their size at most."""
    call = one.record.call
    return (
        group,
        one.group_rank,
        one.record.source,
        call.op,
        call.reduce_op,
        tuple(buffer.dtype for buffer in call.inputs),
    )


def _masks(
    calls: Sequence[CollectiveValues], suspects: _Suspects, line_of: Callable[[Group, RankValues], Hashable]
) -> set[Hashable]:
    """The lines at which a rank adds a mask: it sends infinities of one sign in each of several calls, and the next sum
    of other floats is finite. Who calculates with other infinities gets NaN.
    """

    def senders(values: CollectiveValues) -> Iterator[tuple[Hashable, RankValues]]:
        return ((line_of(values.group, one), one) for one in values.ranks if one.sent is not None)

    masks: dict[Hashable, bool] = {}
    times: Counter[Hashable] = Counter()
    found: set[Hashable] = set()
    for place, values in enumerate(calls):
        for line, one in senders(values) if values.reduced else ():
            masks[line] = masks.get(line, True) and one in suspects[place] and _is_mask(one.sent)
            times[line] += 1
    several = {line for line, mask in masks.items() if mask and times[line] > 1}
    waiting: set[Hashable] = set()
    for place, values in enumerate(calls if several else ()):
        lines = {line for line, _ in senders(values)} & several
        waiting |= lines - found
        if not lines and _adds_floats(values):
            found |= waiting if not suspects[place] else set()
            several -= waiting
            waiting = set()
    return found


def _is_mask(side: SideValues | None) -> bool:
    return side is not None and not side.nan and bool(side.plus) != bool(side.minus)


def _is_one_of_few(one: RankValues) -> bool:
    """True if one of the few numbers that the program itself sends is infinite, as a metric that overflows."""
    few = sum(buffer.elements for buffer in one.record.call.inputs) < _FEW
    return (
        few and not one.of_model and _is_mask(one.sent) and one.sent is not None and one.sent.plus + one.sent.minus == 1
    )


def _nan(one: RankValues) -> bool:
    return one.sent is not None and one.sent.nan > 0


def _adds_floats(values: CollectiveValues) -> bool:
    return values.reduced and any(one.sent is not None and one.sent.sum is not None for one in values.ranks)


def _missing_numbers(calls: Sequence[CollectiveValues], broken: Sequence[set[int]]) -> set[_Line]:
    """The lines at which NaNs stand for missing numbers: ranks send them, but do not calculate with them. ``broken``:
    for each call the group ranks that sent NaN.

    NaNs of weights, activations and gradients reach a reduction soon: the next call of its line has them. Where that is
    so nothing is excused. Results that the program gathers, and short ones that it broadcasts, need no other evidence.
    At all other lines NaNs have to be sent more than once, and finite floats to be reduced afterwards; or in the line's
    only call, if afterwards no reduction has any, and models of all its ranks are trained. What a model broadcasts, its
    weights and buffers, has numbers, unless it had none from the first such broadcast on, or has them in the last ones:
    a buffer that holds NaN until it is set. A part for each rank, which may be padded, may also be sent once, if the
    next floats that each rank of the group reduces, or gathers by itself, are finite.
    """
    first, times = _first_sent(calls, broken)
    made = Counter(line for values in calls for line, _ in _senders(values)) if first else Counter()
    unset = _unset(calls, broken)
    last: dict[_Line, bool] = {}
    found: set[_Line] = set()
    spread: set[_Line] = set()
    next_finite: dict[int, bool] = {}
    whole, lost = False, False
    trained: set[int] = set()
    for place, values in reversed([*enumerate(calls)]):
        if values.reduced:
            bad = broken[place]
            for line, one in _senders(values):
                (spread.add if one.group_rank in bad else spread.discard)(line)
            whole |= not bad and _adds_floats(values)
            lost |= bool(bad)
            if not bad and _adds_floats(values) and all(one.of_model for one in values.ranks):
                trained.update(values.group.ranks)
        elif not spread and place in first:
            unread = all(next_finite.get(rank, False) for rank in values.group.ranks)
            unused = not lost and trained.issuperset(values.group.ranks)
            found |= {
                line
                for line, one in first[place]
                if _is_result(one)
                or (unread and _is_in_parts(one))
                or (whole and (line in unset or _is_set(line, last) if _is_weights(one) else times[line] > 1))
                or (unused and not one.of_model and made[line] == 1)
            }
        for line, one in _senders(values) if not values.reduced else ():
            if _is_weights(one):
                last.setdefault(line, one.group_rank not in broken[place])
        if _adds_floats(values) or any(_gathers_floats(one) for _, one in _senders(values)):
            next_finite |= dict.fromkeys(values.group.ranks, not broken[place])
    return found


def _first_sent(
    calls: Sequence[CollectiveValues], broken: Sequence[set[int]]
) -> tuple[dict[int, list[tuple[_Line, RankValues]]], Counter[_Line]]:
    """The lines that have moved NaNs, by the place of the first such call, and how many of their calls did."""
    first: dict[int, list[tuple[_Line, RankValues]]] = {}
    times: Counter[_Line] = Counter()
    for place, values in enumerate(calls):
        if broken[place] and not values.reduced:
            for line, one in _senders(values):
                if one.group_rank in broken[place]:
                    if line not in times:
                        first.setdefault(place, []).append((line, one))
                    times[line] += 1
    return first, times


def _unset(calls: Sequence[CollectiveValues], broken: Sequence[set[int]]) -> set[_Line]:
    """The lines at which a model broadcast NaN before its rank had broadcast any floats without."""
    found: set[_Line] = set()
    have_sent: set[tuple[Group, int]] = set()
    for place, values in enumerate(calls if any(broken) else ()):
        for line, one in _senders(values) if not values.reduced else ():
            if not _is_weights(one) or not any(is_float(buffer.dtype) for buffer in one.record.call.inputs):
                continue
            if one.group_rank not in broken[place]:
                have_sent.add(line[:2])
            elif line[:2] not in have_sent:
                found.add(line)
    return found


def _is_set(line: _Line, last: Mapping[_Line, bool]) -> bool:
    """True if what the rank's models broadcast after a call is finite in the end: ``last`` has the lines of then."""
    ends = [finite for other, finite in last.items() if other[:2] == line[:2]]
    return bool(ends) and all(ends)


def _senders(values: CollectiveValues) -> Iterator[tuple[_Line, RankValues]]:
    return ((_line(values.group, one), one) for one in values.ranks if one.sent is not None)


def _is_result(one: RankValues) -> bool:
    """True if the program itself gathers what a rank sends, or broadcasts a few numbers, as it does with results."""
    law = spec_of(one.record.call).values
    if law is None or one.of_model or law.sent_in_parts:
        return False
    return law.received_in_parts or sum(buffer.elements for buffer in one.record.call.inputs) < _FEW


def _is_in_parts(one: RankValues) -> bool:
    """True if a rank sends a part to each."""
    law = spec_of(one.record.call).values
    return law is not None and law.sent_in_parts


def _gathers_floats(one: RankValues) -> bool:
    law = spec_of(one.record.call).values
    gathers = law is not None and law.received_in_parts and not law.sent_in_parts and not one.of_model
    return gathers and any(is_float(buffer.dtype) for buffer in one.record.call.inputs)


def _is_weights(one: RankValues) -> bool:
    """True if what a rank sends are the weights and buffers of a model, and not data that ranks share."""
    return one.of_model and spec_of(one.record.call).rooted is Rooted.FROM_ROOT


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
    """The rounds of each line.

    A scaler that has ended none between a rank's calls, though gradients were cleared ``_UNUSED`` times, is not in use.
    """
    ended: dict[int, set[int]] = {}
    cleared: dict[int, set[int]] = {}
    for values in calls:
        for one in values.ranks:
            if one.scaling is not None:
                rank = values.group.ranks[one.group_rank]
                ended.setdefault(rank, set()).add(one.scaling)
                cleared.setdefault(rank, set()).add(one.cleared)
    unused = {rank for rank, rounds in ended.items() if len(rounds) == 1 and len(cleared[rank]) > _UNUSED}
    rounds: dict[_Line, list[_Round]] = {}
    for place, values in enumerate(calls):
        bad = {one.group_rank for one in suspects[place]}
        none = not any(one.sent is not None and one.sent.finite for one in values.ranks)
        for one in values.ranks:
            if one.sent is None:
                continue
            of_line = rounds.setdefault(_line(values.group, one), [])
            scaling = None if values.group.ranks[one.group_rank] in unused else one.scaling
            if scaling is None or not of_line or of_line[-1].scaling != scaling:
                of_line.append(_Round(scaling, place))
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


def _unused(calls: Sequence[CollectiveValues], suspects: _Suspects, discards: Discards) -> dict[_Line, _Search]:
    """Of each line whether its values that are not finite were thrown away: what a step has used stays in the weights.
    At the end they may have been for ``_RECOVERING`` rounds, where optimizers make the steps: a rank that has nothing
    else any more is reported.
    """
    finite: dict[_Line, int] = {}
    rest: dict[_Line, set[int | None]] = {}
    for place, values in enumerate(calls if discards.spans else ()):
        bad = {one.group_rank for one in suspects[place]}
        span = discards.span(values, optimized=True) if bad else None
        for line, one in _senders(values):
            if not bad:
                finite[line], rest[line] = place, set()
            elif one.group_rank in bad:
                rest.setdefault(line, set()).add(span)
    return {
        line: _Search(finite.get(line, -1), len(spans) <= _RECOVERING and None not in spans)
        for line, spans in rest.items()
    }


def _looks_scaled(values: CollectiveValues) -> bool:
    call = values.ranks[0].record.call
    buffers = call.inputs
    law = spec_of(call).values
    if law is None or not law.reduced or not buffers:
        return False
    one_float = len(buffers) == 1 and buffers[0].elements == 1 and "float" in buffers[0].dtype
    return buffers[0].dtype == "float16" or (one_float and operator(call.reduce_op, buffers[0].dtype) == "max")


def _non_finite_finding(
    values: CollectiveValues,
    bad: Sequence[RankValues],
    columns: Sequence[GroupColumns],
    *,
    by_message: bool,
    before: bool,
) -> Finding:
    """``by_message``: a message may have brought it; ``before``: so had a call, at a line that is finite again."""
    call = values.ranks[0].record.call
    senders = [one for one in values.ranks if one.sent is not None]
    culprits = values.global_ranks(one.group_rank for one in bad)
    who = ranks_text(culprits)
    names = {name_of(values, one, columns) for one in bad}
    where = f", the first in {names.pop()}" if len(names) == 1 and "" not in names else ""
    what = _what(one.sent for one in bad)
    sampled = any(one.sampled for one in values.ranks)
    checked = " that was checked" if sampled else ""
    none = f"no collective{checked} before had brought it any"
    some = f"a collective{checked} had brought it some, but that line has been finite since"
    # Of several ranks in a sample some may have what the others sent before.
    most = 1 if sampled else max(len(senders) - 1, 1)
    message = f"{who} put {what} into {call.op}{where}: {some if before else none}"
    if by_message:
        message += "; a message, whose values are not looked at, may have"
    return NON_FINITE_INPUT.finding(
        message,
        group=values.group,
        sequence=values.sequence,
        ranks=values.group.ranks,
        culprits=culprits if not by_message and len(bad) <= most else (),
        sides=values.sides(lambda one: f"sent {_what([one.sent])}" if one in bad else ""),
    )


def _what(sides: Iterable[SideValues | None]) -> str:
    known = [side for side in sides if side is not None]
    nan, infinite = sum(side.nan for side in known), sum(side.plus + side.minus for side in known)
    parts = [f"{count:,} {name}" for count, name in ((nan, "NaN"), (infinite, "infinite")) if count]
    return " and ".join(parts) + (" elements" if nan + infinite > 1 else " element")
