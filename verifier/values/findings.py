"""SC901 to SC904, and SC906: findings on the values of collectives, and on what they keep equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simcoll.core.trace import Trace
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.findings.finding import Finding, Rule
from simcoll.verifier.findings.rules import REPLICAS_DIFFER, WRONG_RESULT
from simcoll.verifier.values.digests import CollectiveValues, digested_calls
from simcoll.verifier.values.laws import Breach, differing_replicas, wrong_results
from simcoll.verifier.values.non_finite import non_finite
from simcoll.verifier.values.random_states import random_states
from simcoll.verifier.values.replicas import drifted_replicas


def value_findings(columns: Sequence[GroupColumns], ranks: Sequence[Trace]) -> list[Finding]:
    """Findings on the values of a job's collectives: the first call of each rule and group, in order of time; and on
    the replicas that have drifted apart, unless ranks had got wrong results, or drawn other random numbers, before.
    """
    calls = digested_calls(columns)
    traces = {id(part.trace): part.trace for group in columns for part in group.parts} if calls else {}
    scaled = any(event.kind == "scaled" for trace in traces.values() for event in trace.events)
    breaches, groups = [*_breaches(calls)], [group.group for group in columns]
    wrong, causes = _first_breaches(breaches), [_cause(*one) for one in breaches]
    parted = [one for one in random_states(ranks, groups) if not _explained(*one, 0, causes)]
    causes += [_Cause(time_ns, time_ns, finding.ranks, finding.culprits) for time_ns, finding in parted]
    drifted = [
        (time_ns, finding)
        for time_ns, equal_ns, finding in drifted_replicas(ranks, groups)
        if not _explained(time_ns, finding, equal_ns, causes)
    ]
    found = [*non_finite(calls, scaled, columns), *wrong, *parted, *drifted]
    return [finding for _, finding in sorted(found, key=lambda one: one[0])]


_Found = tuple[int, Finding]
_Broken = tuple[CollectiveValues, Rule, Breach]


@dataclass(frozen=True, slots=True)
class _Cause:
    """What may explain a later finding: wrong results of ``ranks``, or of the ``culprits`` among them where these are
    known, and the times at which they began and ended.
    """

    began_ns: int
    ended_ns: int
    ranks: tuple[int, ...]
    culprits: tuple[int, ...]


def _cause(values: CollectiveValues, rule: Rule, breach: Breach) -> _Cause:
    ended = max(one.record.finished_ns for one in values.ranks)
    return _Cause(values.began_ns, ended, values.group.ranks, values.global_ranks(breach.wrong))


def _explained(time_ns: int, finding: Finding, equal_ns: int, causes: Sequence[_Cause]) -> bool:
    """True if a finding follows from an earlier cause on some of the same ranks, after the time at which their values
    were still equal.
    """
    return any(
        cause.began_ns <= time_ns
        and cause.ended_ns >= equal_ns
        and not {*(cause.culprits or finding.ranks)}.isdisjoint(finding.culprits or finding.ranks)
        and not {*cause.ranks}.isdisjoint(finding.ranks)
        for cause in causes
    )


def _breaches(calls: Sequence[CollectiveValues]) -> Iterator[_Broken]:
    """The calls with wrong results; differing replicas count under their own rule alone."""
    for values in calls:
        rule, breach = REPLICAS_DIFFER, differing_replicas(values)
        if breach is None:
            rule, breach = WRONG_RESULT, wrong_results(values)
        if breach is not None:
            yield values, rule, breach


def _first_breaches(breaches: Sequence[_Broken]) -> list[_Found]:
    """The first call of each group and rule, and how many follow."""
    found: dict[tuple[object, str], tuple[_Broken, int]] = {}
    for one in breaches:
        key = one[0].group, one[1].code
        first, count = found.get(key, (one, 0))
        found[key] = first, count + 1
    return [(one[0].began_ns, _breach_finding(*one, count)) for one, count in found.values()]


def _breach_finding(values: CollectiveValues, rule: Rule, breach: Breach, count: int) -> Finding:
    op = values.ranks[0].record.call.op
    more = f"; so it is in {count - 1} later calls that were checked" if count > 1 else ""
    return rule.finding(
        f"{op}: {breach.text}{more}",
        group=values.group,
        sequence=values.sequence,
        ranks=values.group.ranks,
        culprits=values.global_ranks(breach.wrong),
        sides=values.sides(lambda one: "holds a wrong result" if one.group_rank in breach.wrong else ""),
    )
