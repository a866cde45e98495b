"""SC901 to SC904, and SC906: findings on the values of collectives, and on what they keep equal.

Infinities and NaNs are often intended. These are not reported:

* infinities in a minimum or a maximum, of which they are the neutral elements;
* infinities that are only moved (masks, tables of logarithms);
* NaNs that ranks send each other at one line more than once, without one in any reduction from then on: they stand for
  missing numbers;
* infinities of one sign, as many from every rank, without NaNs: a mask;
* values of a program with loss scaling while it looks for its scale: in a later round all calls of the same line, of
  the same rank, are finite again; and a rank has made a GradScaler, or reduces a tensor of float16, or takes the
  maximum of one float, as of found_inf. With a GradScaler, which skips such a step, the job may also end meanwhile:
  after at most ``_RECOVERING`` such rounds of the line, or ``_SEARCHING`` where it has been so from its first call on
  and all ranks overflow in all but ``_RECOVERING`` of them. A round ends where the scaler looks at the gradients, which
  the ranks write down; without a scaler each call is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Source
from simcoll.core.trace import Trace
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.value_laws import operator
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.findings.finding import Finding, Rule, Side, lines
from simcoll.verifier.findings.rules import NON_FINITE_INPUT, REPLICAS_DIFFER, WRONG_RESULT
from simcoll.verifier.values.digests import CollectiveValues, RankValues, SideValues, digested_calls
from simcoll.verifier.values.laws import Breach, differing_replicas, wrong_results
from simcoll.verifier.values.names import name_of
from simcoll.verifier.values.random_states import random_states
from simcoll.verifier.values.replicas import drifted_replicas


def value_findings(columns: Sequence[GroupColumns], ranks: Sequence[Trace]) -> list[Finding]:
    """Findings on the values of a job's collectives: the first call of each rule and group, in order of time; and on
    the replicas that have drifted apart, unless ranks had got wrong results, or drawn other random numbers, before.
    """
    calls = digested_calls(columns)
    traces = {id(part.trace): part.trace for group in columns for part in group.parts} if calls else {}
    scaled = any(event.kind == "scaled" for trace in traces.values() for event in trace.events)
    wrong, groups = _breaches(calls), [group.group for group in columns]
    parted = _unexplained(random_states(ranks, groups), wrong)
    drifted = _unexplained(drifted_replicas(ranks, groups), [*wrong, *parted])
    found = [*_non_finite(calls, scaled, columns), *wrong, *parted, *drifted]
    return [finding for _, finding in sorted(found, key=lambda one: one[0])]


_Found = tuple[int, Finding]


def _unexplained(found: Sequence[_Found], causes: Sequence[_Found]) -> list[_Found]:
    """The findings that do not follow from an earlier one on some of the same ranks."""
    return [
        (time_ns, finding)
        for time_ns, finding in found
        if not any(before <= time_ns and {*one.ranks} & {*finding.ranks} for before, one in causes)
    ]


def _breaches(calls: Sequence[CollectiveValues]) -> list[_Found]:
    """The first call of each group and rule with wrong results; differing replicas count under their own rule alone."""
    found: dict[tuple[object, str], tuple[CollectiveValues, Rule, Breach, int]] = {}
    for values in calls:
        rule, breach = REPLICAS_DIFFER, differing_replicas(values)
        if breach is None:
            rule, breach = WRONG_RESULT, wrong_results(values)
        if breach is not None:
            key = values.group, rule.code
            first = found.get(key, (values, rule, breach, 0))
            found[key] = (*first[:3], first[3] + 1)
    return [
        (values.began_ns, _breach_finding(values, rule, breach, count))
        for values, rule, breach, count in found.values()
    ]


def _breach_finding(values: CollectiveValues, rule: Rule, breach: Breach, count: int) -> Finding:
    op = values.ranks[0].record.call.op
    more = f"; so it is in {count - 1} later calls that were checked" if count > 1 else ""
    return rule.finding(
        f"{op}: {breach.text}{more}",
        group=values.group,
        sequence=values.sequence,
        ranks=values.group.ranks,
        culprits=values.global_ranks(breach.wrong),
        sides=_sides(values, lambda one: "holds a wrong result" if one.group_rank in breach.wrong else ""),
    )


def _sides(values: CollectiveValues, note: Callable[[RankValues], str]) -> list[Side]:
    """The ranks of a call by the sentence on them."""
    ordered = sorted(values.ranks, key=lambda one: (note(one), one.group_rank))
    sides = []
    for text, same in groupby(ordered, key=note):
        ranks = [*same]
        named = [(values.group.ranks[one.group_rank], one.record.source) for one in ranks]
        sides.append(Side(tuple(sorted(rank for rank, _ in named)), ranks[0].record.call, lines(named), text))
    return sorted(sides, key=lambda side: side.ranks)


_RECOVERING = 2
_SEARCHING = 40
"""Rounds that overflow before a scale that is too large is found: each halves it, and few begin above 2^32."""


def _non_finite(calls: Sequence[CollectiveValues], scaled: bool, columns: Sequence[GroupColumns]) -> list[_Found]:
    """The first call into which a rank put values that are not finite, without having received such values before."""
    tainted: set[int] = set()
    searches: dict[_Line, _Search] | None = None
    missing: set[_Line] | None = None
    for place, values in enumerate(calls):
        bad = _suspects(values)
        if bad and not _is_reduced(values):
            missing = _missing_numbers(calls) if missing is None else missing
            bad = [one for one in bad if _line(values.group, one) not in missing]
        fresh = [one for one in bad if values.group.ranks[one.group_rank] not in tainted]
        if fresh:
            if searches is None:
                searches = _searches(calls, scaled=scaled) if scaled or any(map(_looks_scaled, calls)) else {}
            of_fresh = [searches.get(_line(values.group, one)) for one in fresh]
            if not all(search is not None and search.explains(place) for search in of_fresh):
                return [(values.began_ns, _non_finite_finding(values, fresh, columns))]
            if scaled:
                continue
        if bad:
            tainted |= {values.group.ranks[one.group_rank] for one in values.ranks if one.received is not None}
    return []


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


def _missing_numbers(calls: Sequence[CollectiveValues]) -> set[_Line]:
    """The lines at which NaNs stand for missing numbers."""
    found: dict[_Line, list[int]] = {}
    broken, whole = -1, -1
    for place, values in enumerate(calls):
        sent = [(_line(values.group, one), one.sent) for one in values.ranks if one.sent is not None]
        if not _is_reduced(values) and len(sent) > 1:
            for line, side in sent:
                if side.nan:
                    found.setdefault(line, []).append(place)
        elif _is_reduced(values) and any(side.nan for _, side in sent):
            broken = place
        elif _is_reduced(values) and any(side.sum is not None for _, side in sent):
            whole = place
    return {line for line, [first, *more] in found.items() if more and broken < first < whole}


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


def _searches(calls: Sequence[CollectiveValues], *, scaled: bool) -> dict[_Line, _Search]:
    """The search for a scale at each line."""
    rounds: dict[_Line, list[_Round]] = {}
    for place, values in enumerate(calls):
        bad = {one.group_rank for one in _suspects(values)}
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
    return {line: _search(of_line, scaled=scaled) for line, of_line in rounds.items()}


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


def _non_finite_finding(
    values: CollectiveValues, bad: Sequence[RankValues], columns: Sequence[GroupColumns]
) -> Finding:
    call = values.ranks[0].record.call
    senders = [one for one in values.ranks if one.sent is not None]
    culprits = values.global_ranks(one.group_rank for one in bad)
    who = ranks_text(culprits)
    names = {name_of(values, one, columns) for one in bad}
    where = f", the first in {names.pop()}" if len(names) == 1 and "" not in names else ""
    what = _what(one.sent for one in bad)
    message = f"{who} put {what} into {call.op}{where}: no collective before had brought it any"
    return NON_FINITE_INPUT.finding(
        message,
        group=values.group,
        sequence=values.sequence,
        ranks=values.group.ranks,
        culprits=culprits if len(bad) < len(senders) or len(senders) == 1 else (),
        sides=_sides(values, lambda one: f"sent {_what([one.sent])}" if one in bad else ""),
    )


def _what(sides: Iterable[SideValues | None]) -> str:
    known = [side for side in sides if side is not None]
    nan, infinite = sum(side.nan for side in known), sum(side.plus + side.minus for side in known)
    parts = [f"{count:,} {name}" for count, name in ((nan, "NaN"), (infinite, "infinite")) if count]
    return " and ".join(parts) + (" elements" if nan + infinite > 1 else " element")
